//! Consumers that are safe against duplicates: records which events a subscriber has processed.
//!
//! The relay delivers at least once, as do most brokers. A consumer marks each event in the transaction of its effect. The
//! mark and the effect are committed together, so the effect happens once, no matter how often the event is delivered.
//!
//! ```no_run
//! # #[cfg(feature = "tokio-postgres")] mod example {
//! use pg_idempotency::inbox::{self, Receipt};
//!
//! /// One record from the topic, with the value of its header `event_id`.
//! async fn consume(
//!     client: &mut tokio_postgres::Client,
//!     event_id: &str,
//!     account: i64,
//!     cents: i64,
//! ) -> Result<(), Box<dyn std::error::Error>> {
//!     let tx = client.transaction().await?;
//!     if inbox::receive(&tx, "balances", event_id).await? == Receipt::First {
//!         tx.execute("UPDATE account SET cents = cents + $2 WHERE id = $1", &[&account, &cents]).await?;
//!     }
//!     tx.commit().await?;
//!     // Commit the offset to Kafka only after this.
//!     Ok(())
//! }
//! # }
//! ```
//!
//! Create the table with `outbox-relay migrate --with inbox`, or `outbox-relay migrate --only inbox` in a database without an
//! outbox. [`receive`] and [`receive_many`] use the schema `public`. With [`Inbox`], you can set another one.
//!
//! # Concurrent deliveries
//!
//! The second delivery of an event waits until the transaction of the first one ends. It is a [`Receipt::Duplicate`] after a
//! commit, and [`Receipt::First`] after a rollback.
//!
//! This describes READ COMMITTED, the default of PostgreSQL. In REPEATABLE READ and SERIALIZABLE, a transaction does not see
//! later commits. A duplicate that was committed after its snapshot causes an error with the SQLSTATE `40001`. A duplicate is
//! never mistaken for the first delivery.
//!
//! If two transactions receive several events one by one in different orders, PostgreSQL ends one of them with `40P01`
//! (deadlock). [`receive_many`] always uses the same order. Call it once per transaction.
//!
//! # Retention
//!
//! Keep marks for longer than the time during which an event can be redelivered: the topic's retention, plus the longest
//! delay of a requeued dead letter, a replay or a restored outbox. The relay deletes older marks
//! (`[reaper] inbox_retention`). In a database without a relay, a job must call
//! `SELECT inbox_reap(interval '30 days', 5000)`, as the owner of the table, until it returns less than 5000.
//!
//! # Privileges
//!
//! Membership in the group `outbox_relay_inbox`. `outbox-relay migrate --print-roles` prints the SQL that creates it, and so
//! does `--print-roles --only inbox` in a database without an outbox. The group can execute the functions and has no privilege on the table. A
//! mark belongs to the role that logged in, or to its service in the table `inbox_service`. No other service sees it or can
//! make it.

use std::fmt;
use std::sync::{Arc, LazyLock};

use pg_outbox::__private::{Answer, Argument, Kind, Statement};
use pg_outbox::{OutboxTransaction, PostgresError, TableNameError};
use thiserror::Error;

use crate::database::{DatabaseError, Schema};
use crate::invalid_text::{InvalidText, check_text};

/// The maximum length of a subscriber's name and of an event ID, in bytes.
pub const BYTES_MAX: usize = 255;

/// Whether this is the first delivery of an event.
///
/// ```no_run
/// # #[cfg(feature = "tokio-postgres")] mod example {
/// # async fn example(tx: &tokio_postgres::Transaction<'_>) -> Result<(), Box<dyn std::error::Error>> {
/// use pg_idempotency::inbox::{self, Receipt};
///
/// match inbox::receive(tx, "balances", "0197f5c2-9c5e-7e0a-8d1e-4b8a2f6c1d3e").await? {
///     Receipt::First => println!("process the event"),
///     Receipt::Duplicate => println!("ignore it, and commit the offset"),
/// }
/// # Ok(()) }
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a duplicate must not be processed again"]
pub enum Receipt {
    /// The first delivery. Process the event in the transaction of this mark.
    First,
    /// The event was processed before.
    Duplicate,
}

/// Why an event was not received.
///
/// ```
/// use pg_idempotency::inbox::Error;
///
/// /// Whether the record itself is the reason: a retry would fail too.
/// fn is_of_the_record(error: &Error) -> bool {
///     matches!(error, Error::Invalid(_) | Error::InvalidInBatch { .. })
/// }
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The name or the ID is invalid. The transaction is unchanged.
    #[error(transparent)]
    Invalid(#[from] InvalidText),
    /// An ID of the batch is invalid. The transaction is unchanged.
    #[error("cannot receive event {position} of the call: {reason}")]
    InvalidInBatch {
        /// The position of the ID in the call, from 1.
        position: usize,
        /// What is wrong with it.
        reason: InvalidText,
    },
    /// PostgreSQL rejected the call or is unavailable. Roll back.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// The inbox of a schema. Clones are cheap.
///
/// ```no_run
/// # #[cfg(feature = "tokio-postgres")] mod example {
/// # async fn example(tx: &tokio_postgres::Transaction<'_>) -> Result<(), Box<dyn std::error::Error>> {
/// use pg_idempotency::inbox::{Inbox, Receipt};
///
/// let inbox = Inbox::in_schema("app")?;
/// let first = inbox.receive(tx, "balances", 42).await?;
/// let batch = inbox.receive_many(tx, "balances", [42, 43]).await?;
/// assert_eq!((first, batch[0]), (Receipt::First, Receipt::Duplicate));
/// # Ok(()) }
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Inbox(Arc<Calls>);

#[derive(Debug)]
struct Calls {
    receive: Statement,
    receive_many: Statement,
}

static DEFAULT: LazyLock<Inbox> = LazyLock::new(|| Inbox::of(&Schema::public()));

impl Default for Inbox {
    fn default() -> Inbox {
        DEFAULT.clone()
    }
}

impl Inbox {
    /// The inbox in this schema: `app`, or `"My App"` if the name is not lower-case.
    ///
    /// # Errors
    ///
    /// If this is not a valid name.
    pub fn in_schema(schema: &str) -> Result<Inbox, TableNameError> {
        Ok(Inbox::of(&Schema::parse(schema)?))
    }

    fn of(schema: &Schema) -> Inbox {
        Inbox(Arc::new(Calls {
            receive: schema.call("SELECT {schema}.inbox_receive($1, $2)", &[Kind::Flag]),
            receive_many: schema.call("SELECT {schema}.inbox_receive_many($1, $2)", &[Kind::Flags]),
        }))
    }

    /// Marks an event as processed by this subscriber, in the transaction. Call it before the effect.
    ///
    /// It needs one round trip, and waits while another transaction with the same event is open. The ID can be any text of 1 to
    /// 255 bytes, such as the record header `event_id`. If you drop the future, roll back, because the mark may be in the
    /// transaction.
    ///
    /// # Errors
    ///
    /// After [`Error::Invalid`], the transaction is still usable. After [`Error::Database`], PostgreSQL accepts only a
    /// rollback.
    pub async fn receive(
        &self,
        transaction: impl OutboxTransaction,
        subscriber: &str,
        event_id: impl fmt::Display,
    ) -> Result<Receipt, Error> {
        let event_id = event_id.to_string();
        check_text("the subscriber", subscriber, BYTES_MAX)?;
        check_text("the event id", &event_id, BYTES_MAX)?;
        let arguments = [Argument::Text(subscriber), Argument::Text(&event_id)];
        let mut answer = one(transaction.call(&self.0.receive, &arguments).await)?;
        Ok(Receipt::of(answer.flag()))
    }

    /// Marks many events in one round trip, and returns receipts in the order of the input. An ID that occurs twice is
    /// [`Receipt::First`] only at its first position.
    ///
    /// The marks are inserted in the order of the IDs, not of the input, so that two such calls cannot deadlock.
    ///
    /// # Errors
    ///
    /// See [`Inbox::receive`], with [`Error::InvalidInBatch`] for an ID.
    pub async fn receive_many<Id: fmt::Display>(
        &self,
        transaction: impl OutboxTransaction,
        subscriber: &str,
        event_ids: impl IntoIterator<Item = Id>,
    ) -> Result<Vec<Receipt>, Error> {
        let event_ids: Vec<String> = event_ids.into_iter().map(|id| id.to_string()).collect();
        check_text("the subscriber", subscriber, BYTES_MAX)?;
        for (event_id, position) in event_ids.iter().zip(1..) {
            check_text("the event id", event_id, BYTES_MAX)
                .map_err(|reason| Error::InvalidInBatch { position, reason })?;
        }
        if event_ids.is_empty() {
            return Ok(Vec::new());
        }
        let event_ids: Vec<&str> = event_ids.iter().map(String::as_str).collect();
        let arguments = [Argument::Text(subscriber), Argument::Texts(&event_ids)];
        let mut answer = one(transaction.call(&self.0.receive_many, &arguments).await)?;
        Ok(answer.flags().into_iter().map(Receipt::of).collect())
    }
}

impl Receipt {
    fn of(first: bool) -> Receipt {
        if first { Receipt::First } else { Receipt::Duplicate }
    }
}

fn one(answers: Result<Vec<Answer>, PostgresError>) -> Result<Answer, DatabaseError> {
    let answers = answers.map_err(|error| DatabaseError::new("inbox", error))?;
    let Some(answer) = answers.into_iter().next() else { unreachable!("the function returns one row") };
    Ok(answer)
}

/// Marks an event in the inbox of the schema `public`: see [`Inbox::receive`].
///
/// # Errors
///
/// See [`Inbox::receive`].
pub async fn receive(
    transaction: impl OutboxTransaction,
    subscriber: &str,
    event_id: impl fmt::Display,
) -> Result<Receipt, Error> {
    DEFAULT.receive(transaction, subscriber, event_id).await
}

/// Marks many events in the inbox of the schema `public`: see [`Inbox::receive_many`].
///
/// ```no_run
/// # #[cfg(feature = "tokio-postgres")] mod example {
/// # async fn example(tx: &tokio_postgres::Transaction<'_>) -> Result<(), Box<dyn std::error::Error>> {
/// use pg_idempotency::inbox::{self, Receipt};
///
/// let event_ids = ["0197f5c2-9c5e-7e0a-8d1e-4b8a2f6c1d3e", "0197f5c2-9c5e-7e0a-8d1e-4b8a2f6c1d3f"];
/// for (event_id, receipt) in event_ids.iter().zip(inbox::receive_many(tx, "balances", event_ids).await?) {
///     if receipt == Receipt::First {
///         println!("process {event_id}");
///     }
/// }
/// # Ok(()) }
/// # }
/// ```
///
/// # Errors
///
/// See [`Inbox::receive_many`].
pub async fn receive_many<Id: fmt::Display>(
    transaction: impl OutboxTransaction,
    subscriber: &str,
    event_ids: impl IntoIterator<Item = Id>,
) -> Result<Vec<Receipt>, Error> {
    DEFAULT.receive_many(transaction, subscriber, event_ids).await
}
