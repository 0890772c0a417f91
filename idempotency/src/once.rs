//! Claims keys for a limited time, so that something happens only once within that time.
//!
//! This corresponds to `SETNX` and `SET key NX PX` in Redis, but in your own transaction. Use it for jobs that several processes start,
//! for webhooks that a provider repeats, and for emails.
//!
//! ```no_run
//! # #[cfg(feature = "tokio-postgres")] mod example {
//! use std::time::Duration;
//! use pg_idempotency::once::{self, Claim};
//!
//! async fn nightly_report(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//!     let tx = client.transaction().await?;
//!     if once::claim(&tx, "report of 2026-11-22", Duration::from_secs(86_400)).await? == Claim::First {
//!         tx.execute("INSERT INTO report SELECT * FROM figures_of_today", &[]).await?;
//!     }
//!     tx.commit().await?;
//!     Ok(())
//! }
//! # }
//! ```
//!
//! If several callers claim a key within its time to live, exactly one gets [`Claim::First`]. A rollback releases the key. The
//! time starts with the call, by the server's clock. If a transaction lasts longer than the time to live, its claim has
//! already expired when it commits.
//!
//! A claim waits while another transaction that has claimed the key is open. In REPEATABLE READ and SERIALIZABLE, a claim that
//! was committed after the snapshot causes the error `40001`. Begin the transaction again.
//!
//! For effects that cannot be rolled back, such as an email, you must choose. If you claim, commit and then send, the email is
//! sent at most once. If you claim, send and then commit, it is sent at least once. It is better to enqueue an event, and to
//! detect duplicates in the receiver.
//!
//! Create the table with `outbox-relay migrate --with once`. The relay deletes expired claims.
//!
//! # Privileges
//!
//! Membership in the group `outbox_relay_once`. `outbox-relay migrate --print-roles` prints the SQL that creates it, and so
//! does `--print-roles --only once` in a database without an outbox. The group can execute the function and has no privilege on the table. A claim
//! belongs to the role that logged in, or to its service in the table `once_service`. No other service sees it.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use pg_outbox::__private::{Argument, Kind, Statement};
use pg_outbox::{OutboxTransaction, TableNameError};
use thiserror::Error;

use crate::database::{DatabaseError, Schema};
use crate::invalid_text::{InvalidText, check_text};

/// The maximum length of a key in bytes.
pub const BYTES_MAX: usize = 255;

/// The longest time to live: 3,600 days, which PostgreSQL counts as ten years.
pub const TTL_MAX: Duration = Duration::from_secs(3_600 * 86_400);

/// The result of claiming a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "only the first caller may continue"]
pub enum Claim {
    /// The key was free. It is claimed if this transaction commits.
    First,
    /// Another caller has claimed the key.
    Taken,
}

/// Why a key was not claimed.
///
/// ```no_run
/// # #[cfg(feature = "tokio-postgres")] mod example {
/// # async fn example(tx: &tokio_postgres::Transaction<'_>) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use pg_idempotency::once::{self, Error};
///
/// if let Err(Error::Invalid(reason)) = once::claim(tx, "", Duration::from_secs(60)).await {
///     assert_eq!(reason.to_string(), "the key is empty"); // the transaction is still usable
/// }
/// # Ok(()) }
/// # }
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is invalid. The transaction is unchanged.
    #[error(transparent)]
    Invalid(#[from] InvalidText),
    /// The time to live is 0 or more than [`TTL_MAX`]. The transaction is unchanged.
    #[error("cannot claim a key for {ttl:?}. Use a time of more than 0 s and at most 3600 days")]
    Ttl {
        /// The time to live.
        ttl: Duration,
    },
    /// PostgreSQL rejected the call or is unavailable. Roll back.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// The claims of a schema. Clones are cheap.
///
/// ```no_run
/// # #[cfg(feature = "tokio-postgres")] mod example {
/// # async fn example(tx: &tokio_postgres::Transaction<'_>) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use pg_idempotency::once::{Claim, Once};
///
/// let once = Once::in_schema("app")?;
/// if once.claim(tx, "reminder of order 42", Duration::from_secs(86_400)).await? == Claim::First {
///     println!("enqueue the reminder");
/// }
/// # Ok(()) }
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Once(Arc<Statement>);

static DEFAULT: LazyLock<Once> = LazyLock::new(|| Once::of(&Schema::public()));

impl Default for Once {
    fn default() -> Once {
        DEFAULT.clone()
    }
}

impl Once {
    /// The claims in this schema: `app`, or `"My App"` if the name is not lower-case.
    ///
    /// # Errors
    ///
    /// If this is not a valid name.
    pub fn in_schema(schema: &str) -> Result<Once, TableNameError> {
        Ok(Once::of(&Schema::parse(schema)?))
    }

    fn of(schema: &Schema) -> Once {
        let sql = "SELECT {schema}.once_claim($1, make_interval(secs => $2))";
        Once(Arc::new(schema.call(sql, &[Kind::Flag])))
    }

    /// Claims a key of 1 to 255 bytes for `ttl`, in the transaction.
    ///
    /// It needs one round trip, and waits while another transaction that has claimed the key is open. If you drop the future,
    /// roll back, because the claim may be in the transaction.
    ///
    /// # Errors
    ///
    /// After [`Error::Invalid`] and [`Error::Ttl`], the transaction is still usable. After [`Error::Database`], PostgreSQL
    /// accepts only a rollback.
    pub async fn claim(
        &self,
        transaction: impl OutboxTransaction,
        key: &str,
        ttl: Duration,
    ) -> Result<Claim, Error> {
        check_text("the key", key, BYTES_MAX)?;
        // PostgreSQL has a resolution of 1 µs, so less would be 0.
        if ttl < Duration::from_micros(1) || ttl > TTL_MAX {
            return Err(Error::Ttl { ttl });
        }
        let arguments = [Argument::Text(key), Argument::Seconds(ttl.as_secs_f64())];
        let answers = transaction.call(&self.0, &arguments).await;
        let answers = answers.map_err(|error| DatabaseError::new("once", error))?;
        let Some(mut answer) = answers.into_iter().next() else {
            unreachable!("the function returns one row")
        };
        Ok(if answer.flag() { Claim::First } else { Claim::Taken })
    }
}

/// Claims a key in the schema `public`: see [`Once::claim`].
///
/// # Errors
///
/// See [`Once::claim`].
pub async fn claim(transaction: impl OutboxTransaction, key: &str, ttl: Duration) -> Result<Claim, Error> {
    DEFAULT.claim(transaction, key, ttl).await
}
