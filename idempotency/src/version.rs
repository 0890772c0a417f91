//! Optimistic concurrency control: an update succeeds only if the row has not changed since it was read.
//!
//! Each row has a version. An update checks the version that was read, and increments it. If the version is different, the
//! update changes no row. A common mistake is to ignore the number of updated rows. [`Version::updated`] converts it to a
//! typed [`Conflict`].
//!
//! ```no_run
//! # #[cfg(feature = "tokio-postgres")] mod example {
//! use pg_idempotency::version::Version;
//! use pg_outbox::Event;
//!
//! async fn rename(
//!     client: &mut tokio_postgres::Client,
//!     id: i64,
//!     read: Version,
//!     name: &str,
//! ) -> Result<Version, Box<dyn std::error::Error>> {
//!     let tx = client.transaction().await?;
//!     let rows = tx
//!         .execute(
//!             "UPDATE customer SET name = $3, version = version + 1 WHERE id = $1 AND version = $2",
//!             &[&id, &read.number(), &name],
//!         )
//!         .await?;
//!     let now = read.updated(rows)?;
//!     // The event contains the version and the new state, so that consumers can ignore older events.
//!     let body = serde_json::json!({ "id": id, "version": now.number(), "name": name });
//!     pg_outbox::enqueue(&tx, Event::new("customer", id, "CustomerChanged").json(&body)?).await?;
//!     tx.commit().await?;
//!     Ok(now)
//! }
//! # }
//! ```
//!
//! # Absolute values
//!
//! Write `SET cents = $3` with the version from which the value was computed, not `SET cents = cents - $3`. If the request is
//! repeated, the relative update succeeds twice, but the absolute one causes a [`Conflict`].
//!
//! # Consumers
//!
//! A duplicate can arrive late, and a compacted topic keeps only the last record of a key. A consumer that keeps the latest
//! state needs no inbox if it ignores events that are not newer:
//!
//! ```no_run
//! # #[cfg(feature = "tokio-postgres")] mod example {
//! use pg_idempotency::version::{Applied, Version};
//!
//! async fn apply(
//!     tx: &tokio_postgres::Transaction<'_>,
//!     id: i64,
//!     version: Version,
//!     name: &str,
//! ) -> Result<Applied, tokio_postgres::Error> {
//!     let rows = tx
//!         .execute(
//!             "INSERT INTO customer_copy AS c (id, version, name) VALUES ($1, $2, $3)
//!              ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version, name = EXCLUDED.name
//!              WHERE c.version < EXCLUDED.version",
//!             &[&id, &version.number(), &name],
//!         )
//!         .await?;
//!     Ok(Applied::of(rows))
//! }
//! # }
//! ```
//!
//! The row lock of the upsert makes two such consumers take turns. In REPEATABLE READ and SERIALIZABLE, the second one gets the
//! error `40001`. This module needs no table and no driver.
//!
//! # Deletions
//!
//! Do not delete the row of a deleted aggregate. Otherwise, an older event that is requeued or replayed creates the row again.
//! Keep the row with the version of the deletion, and without the data:
//!
//! ```sql
//! INSERT INTO customer_copy AS c (id, version, name) VALUES ($1, $2, NULL)
//! ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version, name = NULL
//! WHERE c.version < EXCLUDED.version
//! ```
//!
//! Queries must ignore rows without a name. A tombstone has no value, so the version of the deletion is in a header:
//!
//! ```
//! use pg_idempotency::version::Version;
//! use pg_outbox::Event;
//!
//! fn deleted(id: i64, now: Version) -> Event {
//!     Event::new("customer", id, "CustomerDeleted").header("version", now.number().to_string()).tombstone()
//! }
//! ```
//!
//! If the ID of a deleted aggregate is used again, the versions must continue after the version of the deletion. A consumer can
//! delete such a row when no older event can be redelivered, like a [mark of the inbox](crate::inbox#retention).

use thiserror::Error;

/// The version of a row: the number of its changes.
///
/// ```
/// use pg_idempotency::version::Version;
///
/// let read = Version::new(7);
/// assert_eq!(read.number(), 7);
/// assert_eq!(read.updated(1).map(Version::number), Ok(8)); // the number of rows that the UPDATE changed
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(i64);

/// Another transaction has changed or deleted the row since it was read. The update changed nothing. Roll back, and read the
/// row again.
///
/// ```
/// use pg_idempotency::version::{Conflict, Version};
///
/// let read = Version::new(7);
/// assert_eq!(read.updated(0), Err(Conflict { expected: read })); // answer 409 or 412, or read the row again
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "the row no longer has version {expected}, because another transaction has changed or deleted it. Roll back, and \
     read it again",
    expected = .expected.0
)]
pub struct Conflict {
    /// The version that was read.
    pub expected: Version,
}

/// The result of applying an event with a version.
///
/// ```
/// use pg_idempotency::version::Applied;
///
/// assert_eq!(Applied::of(1), Applied::Newer);
/// assert_eq!(Applied::of(0), Applied::Older); // commit the offset all the same
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// The event was newer than the stored state, and was applied.
    Newer,
    /// The event was a duplicate or out of date, and was ignored.
    Older,
}

impl Version {
    /// A version that was read from a row or an event.
    pub fn new(number: i64) -> Version {
        Version(number)
    }

    /// The number, as a parameter of a statement.
    pub fn number(self) -> i64 {
        self.0
    }

    /// The new version after an `UPDATE ... WHERE id = $1 AND version = $2` that changed `rows` rows.
    ///
    /// # Errors
    ///
    /// [`Conflict`] if it changed no row.
    ///
    /// # Panics
    ///
    /// If it changed several rows, because the statement must select a single row.
    pub fn updated(self, rows: u64) -> Result<Version, Conflict> {
        match rows {
            0 => Err(Conflict { expected: self }),
            1 => Ok(Version(self.0 + 1)),
            _ => panic!("the UPDATE changed {rows} rows, but must select a single row by its primary key"),
        }
    }
}

impl Applied {
    /// The result of an `INSERT ... ON CONFLICT DO UPDATE ... WHERE stored.version < EXCLUDED.version` that changed `rows` rows.
    pub fn of(rows: u64) -> Applied {
        if rows == 0 { Applied::Older } else { Applied::Newer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_of_no_row_is_a_conflict() {
        let read = Version::new(7);
        assert_eq!(read.updated(1), Ok(Version::new(8)));
        assert_eq!(read.updated(0), Err(Conflict { expected: read }));
        assert!(read.updated(0).unwrap_err().to_string().contains("version 7"));
    }

    #[test]
    #[should_panic(expected = "changed 2 rows")]
    fn an_update_of_several_rows_panics() {
        let _ = Version::new(1).updated(2);
    }
}
