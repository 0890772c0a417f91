//! Something that is to happen once in a while: a key that is claimed for a time.
//!
//! This is the contract of `SET key NX PX` of Redis, as a part of the transaction. It is for jobs that several
//! processes begin, webhooks that a provider repeats, and e-mails.
//!
//! ```no_run
//! # #[cfg(feature = "tokio-postgres")] mod example {
//! use std::time::Duration;
//! use pg_outbox::once::{self, Claim};
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
//! Of all who claim a key within its time to live, exactly one gets [`Claim::First`], if that transaction
//! commits; a rollback gives the key back. The time counts from the call, by the clock of Postgres: those of the
//! clients do not matter. A transaction that lasts longer than the time to live commits a claim that has expired.
//!
//! While another transaction that has claimed the key is open, a claim waits for its end. In REPEATABLE READ and
//! SERIALIZABLE a claim that was committed after the snapshot is the error `40001` instead: begin anew.
//!
//! What cannot be rolled back, such as an e-mail, still has to choose. Claim, commit and then send: it is sent at
//! most once. Claim, send and then commit: at least once. Better is an event in the outbox and a receiver that
//! tells duplicates.
//!
//! The table is made by `outbox-relay migrate --with once`. It needs SELECT, INSERT and UPDATE on `once_key`. The
//! daemon deletes what has expired.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use thiserror::Error;

use crate::call::{Argument, Call, DatabaseError, Kind, Schema};
use crate::driver::OutboxTransaction;
use crate::invalid_text::{InvalidText, check_text};
use crate::table::TableNameError;

/// The most bytes of a key.
pub const BYTES_MAX: usize = 255;

/// The longest time to live: a hundred years.
pub const TTL_MAX: Duration = Duration::from_secs(100 * 366 * 86_400);

/// Whether a key was claimed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "only the first one may go on"]
pub enum Claim {
    /// By nobody whose time has not passed: it is claimed now, if this transaction commits.
    First,
    /// Somebody has it.
    Seen,
}

/// Why a key was not claimed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A key that cannot be stored. The transaction is as it was.
    #[error(transparent)]
    Invalid(#[from] InvalidText),
    /// A time to live of nothing, or of more than [`TTL_MAX`]. The transaction is as it was.
    #[error("a key can be claimed for more than 0 s and at most 100 years, not for {ttl:?}")]
    Ttl {
        /// The time that was given.
        ttl: Duration,
    },
    /// Postgres refused, or is out of reach. Roll back.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// The claims of a schema. Clones are cheap.
#[derive(Debug, Clone)]
pub struct Once(Arc<Call>);

static DEFAULT: LazyLock<Once> = LazyLock::new(|| Once::of(&Schema::public()));

impl Default for Once {
    fn default() -> Once {
        DEFAULT.clone()
    }
}

impl Once {
    /// The claims in this schema: `app` or, for other than lower-case names, `"My App"`.
    ///
    /// # Errors
    ///
    /// If that is not the name of a schema.
    pub fn in_schema(schema: &str) -> Result<Once, TableNameError> {
        Ok(Once::of(&Schema::parse(schema)?))
    }

    fn of(schema: &Schema) -> Once {
        let sql = "SELECT {schema}.once_claim($1, make_interval(secs => $2))";
        Once(Arc::new(Call::new(schema, sql, &[Kind::Flag])))
    }

    /// Claims a key of 1 to 255 bytes for `ttl`, as part of the transaction.
    ///
    /// One round trip; it waits while another transaction that has claimed the key is open. Dropping the future
    /// leaves open whether the claim is in the transaction: roll back.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] and [`Error::Ttl`] leave the transaction usable. After [`Error::Database`] Postgres
    /// accepts nothing but a rollback.
    pub async fn claim(
        &self,
        transaction: impl OutboxTransaction,
        key: &str,
        ttl: Duration,
    ) -> Result<Claim, Error> {
        check_text("the key", key, BYTES_MAX)?;
        // Postgres counts microseconds: less than one would be nothing.
        if ttl < Duration::from_micros(1) || ttl > TTL_MAX {
            return Err(Error::Ttl { ttl });
        }
        let arguments = [Argument::Text(key), Argument::Seconds(ttl.as_secs_f64())];
        let answers = transaction.call(&self.0, &arguments).await;
        let answers = answers.map_err(|error| DatabaseError::new("once", error))?;
        let Some(mut answer) = answers.into_iter().next() else { unreachable!("a function gives a row") };
        Ok(if answer.flag() { Claim::First } else { Claim::Seen })
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
