//! Optimistic checks: an update that holds only if nobody else has changed the row since it was read.
//!
//! A row carries a version, each update asks for the version that was read and adds one. An update that finds
//! another version changes nothing, and says so by its count of rows. Forgetting to look at that count is the usual
//! mistake; [`Version::updated`] makes it a typed [`Conflict`].
//!
//! ```no_run
//! # #[cfg(feature = "tokio-postgres")] mod example {
//! use pg_outbox::{Event, version::Version};
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
//!     // The event carries the version and the whole new value, so that a consumer can tell which of two is later.
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
//! Write `SET cents = $3` with the version that the value was computed from, not `SET cents = cents - $3`. The
//! relative update succeeds twice if its request comes twice; the absolute one meets a [`Conflict`] the second time.
//!
//! # Consumers
//!
//! A duplicate can come late, and on a compacted topic only the last record of a key remains. A consumer that keeps
//! the latest state needs no inbox, if it ignores what is not newer than what it has:
//!
//! ```no_run
//! # #[cfg(feature = "tokio-postgres")] mod example {
//! use pg_outbox::version::{Applied, Version};
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
//! The row lock of the upsert makes two such consumers take turns; in REPEATABLE READ and SERIALIZABLE the second one
//! gets the error `40001` instead. This module needs no table and no driver.

use thiserror::Error;

/// How often a row was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(i64);

/// The row is not the one that was read: somebody else has changed or deleted it. Nothing was changed; roll back,
/// read it again and decide again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the row no longer has version {expected}: another transaction has changed or deleted it", expected = .expected.0)]
pub struct Conflict {
    /// The version that was read.
    pub expected: Version,
}

/// What became of an event that carries a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It was newer than what was stored, and is stored now.
    Newer,
    /// It was not newer: a duplicate, or one that was overtaken.
    Older,
}

impl Version {
    /// The version that was read, or that an event carries.
    pub fn new(number: i64) -> Version {
        Version(number)
    }

    /// The number, as a parameter of a statement.
    pub fn number(self) -> i64 {
        self.0
    }

    /// The version after an `UPDATE ... WHERE id = $1 AND version = $2` that counted `rows`.
    ///
    /// # Errors
    ///
    /// [`Conflict`] if it changed nothing.
    ///
    /// # Panics
    ///
    /// If it changed several rows, for then the statement does not name one.
    pub fn updated(self, rows: u64) -> Result<Version, Conflict> {
        match rows {
            0 => Err(Conflict { expected: self }),
            1 => Ok(Version(self.0 + 1)),
            _ => panic!("the UPDATE changed {rows} rows: its WHERE must name one by its primary key"),
        }
    }
}

impl Applied {
    /// Of an `INSERT ... ON CONFLICT DO UPDATE ... WHERE stored.version < EXCLUDED.version` that counted `rows`.
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
    fn an_update_of_several_rows_is_a_mistake() {
        let _ = Version::new(1).updated(2);
    }
}
