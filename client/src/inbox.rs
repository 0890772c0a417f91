//! Consumers that take a duplicate without harm: which events a subscriber has processed.
//!
//! The relay delivers at least once, and so do most brokers. A consumer therefore marks each event in the
//! transaction of its effect. The mark and the effect commit together, so the effect happens once, however
//! often the event comes.
//!
//! ```no_run
//! # #[cfg(feature = "tokio-postgres")] mod example {
//! use pg_outbox::inbox::{self, Receipt};
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
//!     // Only now may the offset be committed to Kafka.
//!     Ok(())
//! }
//! # }
//! ```
//!
//! The tables are made by `outbox-relay migrate --with inbox`, or in a database without an outbox by
//! `outbox-relay migrate --only inbox`. [`receive`] and [`receive_many`] mean the schema `public`; [`Inbox`]
//! names another one.
//!
//! # Two deliveries at once
//!
//! The second one waits until the transaction of the first has ended. If that committed it is
//! [`Receipt::Duplicate`], if it rolled back it is [`Receipt::First`].
//!
//! That is so in READ COMMITTED, the default of Postgres. In REPEATABLE READ and SERIALIZABLE a transaction
//! does not see what was committed after its snapshot: such a duplicate is an error with the SQLSTATE `40001`
//! instead, and the transaction that runs next sees it. A duplicate is never taken for the first.
//!
//! A transaction that receives several events one by one can meet another one that receives the same events
//! in another order: Postgres ends one of them with `40P01` (deadlock). [`receive_many`] takes them in one
//! order. Call it once a transaction.
//!
//! # How long a mark has to be kept
//!
//! Longer than an event can come again: the topic's retention, plus the longest time for which somebody may
//! replay it or hold it back (a dead letter that is requeued, an outbox that was restored). The daemon deletes
//! older marks, `[reaper] inbox_retention`; in a database without a relay let a job call
//! `SELECT inbox_reap(interval '30 days', 5000)` until it returns less than 5000.
//!
//! # Rights
//!
//! INSERT on the table `processed_message`; for [`receive_many`] SELECT too.

use std::fmt;
use std::sync::{Arc, LazyLock};

use thiserror::Error;

use crate::call::{Answer, Argument, Call, DatabaseError, Kind, Schema};
use crate::driver::OutboxTransaction;
use crate::invalid_text::{InvalidText, check_text};
use crate::table::TableNameError;

/// The most bytes of a subscriber's name and of an event's id.
pub const BYTES_MAX: usize = 255;

/// Whether an event was seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a duplicate must not have its effect again"]
pub enum Receipt {
    /// For the first time: have the effect, and commit it with this mark.
    First,
    /// The effect is committed already.
    Duplicate,
}

/// Why an event was not received.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A name or an id that cannot be stored. The transaction is as it was.
    #[error(transparent)]
    Invalid(#[from] InvalidText),
    /// An id of a batch that cannot be stored. The transaction is as it was.
    #[error("event {position} of the call: {reason}")]
    InvalidInBatch {
        /// Which of the call's ids; the first one is 1.
        position: usize,
        /// What is wrong with it.
        reason: InvalidText,
    },
    /// Postgres refused, or is out of reach. Roll back.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// The inbox of a schema. Clones are cheap.
#[derive(Debug, Clone)]
pub struct Inbox(Arc<Calls>);

#[derive(Debug)]
struct Calls {
    receive: Call,
    receive_many: Call,
}

static DEFAULT: LazyLock<Inbox> = LazyLock::new(|| Inbox::of(&Schema::public()));

impl Default for Inbox {
    fn default() -> Inbox {
        DEFAULT.clone()
    }
}

impl Inbox {
    /// The inbox in this schema: `app` or, for other than lower-case names, `"My App"`.
    ///
    /// # Errors
    ///
    /// If that is not the name of a schema.
    pub fn in_schema(schema: &str) -> Result<Inbox, TableNameError> {
        Ok(Inbox::of(&Schema::parse(schema)?))
    }

    fn of(schema: &Schema) -> Inbox {
        Inbox(Arc::new(Calls {
            receive: Call::new(schema, "SELECT {schema}.inbox_receive($1, $2)", &[Kind::Flag]),
            receive_many: Call::new(schema, "SELECT {schema}.inbox_receive_many($1, $2)", &[Kind::Flags]),
        }))
    }

    /// Marks an event as processed by this subscriber, as part of the transaction. Call it before the effect.
    ///
    /// One round trip; it waits while another transaction with the same event is open. Any id of 1 to 255
    /// bytes does, such as the record header `event_id`. Dropping the future leaves open whether the mark is in
    /// the transaction: roll back.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] leaves the transaction usable. After [`Error::Database`] Postgres accepts nothing but a
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

    /// Marks many events, and answers in the order of the input. An id that stands in it twice is
    /// [`Receipt::First`] at its first place only.
    ///
    /// One round trip for all of them. The marks are made in the order of the ids, not of the input, so that two
    /// such calls never wait for each other in a circle.
    ///
    /// # Errors
    ///
    /// As [`Inbox::receive`], with [`Error::InvalidInBatch`] for an id.
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

fn one(answers: Result<Vec<Answer>, crate::error::PostgresError>) -> Result<Answer, DatabaseError> {
    let answers = answers.map_err(|error| DatabaseError::new("inbox", error))?;
    let Some(answer) = answers.into_iter().next() else { unreachable!("a function gives a row") };
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
