use std::error::Error as StdError;
use std::fmt;

use thiserror::Error;

use crate::table::TableNameError;
use crate::topic::{TemplateError, TopicError};

/// Why an event was not enqueued. Messages never contain a payload or the value of a header.
///
/// ```
/// use pg_outbox::Error;
///
/// /// Whether an event was rejected before a statement was sent.
/// fn is_unchanged(error: &Error) -> bool {
///     matches!(error, Error::InvalidEvent { .. } | Error::Json(_) | Error::NoTransaction { .. })
/// }
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The payload cannot be serialized.
    #[error("cannot serialize the payload as JSON")]
    Json(#[from] serde_json::Error),

    /// The argument of [`Outbox::new`](crate::Outbox::new) is not a valid name.
    #[error(transparent)]
    TableName(#[from] TableNameError),

    /// The argument of [`Outbox::topic_template`](crate::Outbox::topic_template) is not a valid template.
    #[error("the topic template is invalid: {0}")]
    TopicTemplate(#[from] TemplateError),

    /// The relay could not deliver this event. No statement was sent, so the transaction is unchanged and contains none of the
    /// call's events.
    #[error("cannot enqueue event {position} of the call: {reason}")]
    InvalidEvent {
        /// The position of the event in the call, from 1.
        position: usize,
        /// What is wrong with it.
        reason: InvalidEvent,
    },

    /// The outbox table does not exist in this database.
    #[error(
        "the outbox table {table} does not exist in this database. Create it with `outbox-relay migrate`"
    )]
    NoOutbox {
        /// The table, as in SQL.
        table: String,
        /// The error of PostgreSQL.
        source: PostgresError,
    },

    /// The relay does not support the type of the payload column.
    #[error("the payload column of {table} has the type {column_type}. Change it to json, jsonb or bytea")]
    UnsupportedPayload {
        /// The table, as in SQL.
        table: String,
        /// The type of its payload column.
        column_type: String,
    },

    /// PostgreSQL stored a different number of rows: a trigger, a rule or a policy of the table skips events. Roll back.
    #[error(
        "{table} stored only {stored} of {given} events. Roll back, and check the table for triggers, rules and \
         policies"
    )]
    NotStored {
        /// The table, as in SQL.
        table: String,
        /// The number of events in the call.
        given: u64,
        /// The number of stored rows.
        stored: u64,
    },

    /// The connection has no open transaction. No statement was sent. Only connections of sqlx and diesel can cause this error:
    /// the types of other drivers rule it out, except with sea-orm after a nested `begin` has failed, which is not detected.
    #[error(
        "cannot insert the events, because no transaction is open. Begin one with the driver's `begin()` or \
         `transaction(..)`"
    )]
    NoTransaction {
        /// SQLSTATE 25P01, as PostgreSQL would report it.
        source: PostgresError,
    },

    /// PostgreSQL rejected the events or is unavailable. Roll back.
    #[error("cannot insert the events into {table}")]
    Postgres {
        /// The table, as in SQL.
        table: String,
        /// The error of PostgreSQL or the connection.
        source: PostgresError,
    },
}

/// What is wrong with an event.
///
/// ```
/// use pg_outbox::{Error, InvalidEvent};
///
/// /// Whether the aggregate type or the event type is the reason, which are usually constants of the program.
/// fn is_a_bug(error: &Error) -> bool {
///     matches!(error, Error::InvalidEvent { reason: InvalidEvent::Topic { .. }, .. })
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidEvent {
    /// A field is empty. Kafka would accept an empty key, but all such events would share one partition and one order, which is
    /// almost always a mistake.
    #[error("{field} is empty")]
    Empty {
        /// The field.
        field: &'static str,
    },
    /// A field contains the character U+0000.
    #[error("{field} contains the character U+0000, which PostgreSQL cannot store")]
    Nul {
        /// The field.
        field: &'static str,
    },
    /// The relay sets this header itself.
    #[error("the header name {name:?} is reserved for the relay. Choose another name")]
    ReservedHeader {
        /// The name.
        name: String,
    },
    /// The topic of the event is not a valid topic name.
    #[error(
        "aggregate_type {aggregate_type:?} and event_type {event_type:?} result in the invalid topic {topic:?}: {reason}"
    )]
    Topic {
        /// The aggregate type of the event.
        aggregate_type: String,
        /// The event type of the event.
        event_type: String,
        /// The topic, according to the template.
        topic: String,
        /// What is wrong with the topic.
        reason: TopicError,
    },
}

/// An error of PostgreSQL or of the connection, for any driver.
///
/// It prints the message and the SQLSTATE, but not DETAIL and CONTEXT, which can quote the row and the payload. They are in
/// [`PostgresError::driver_error`].
///
/// ```
/// use pg_outbox::PostgresError;
///
/// fn is_duplicate(error: &PostgresError) -> bool {
///     error.sqlstate() == Some("23505") && error.constraint() == Some("one_event_per_order")
/// }
///
/// fn is_of_this_driver<E: std::error::Error + 'static>(error: PostgresError) -> bool {
///     !error.is_connection_lost() && error.driver_error().is::<E>() && error.into_driver_error().is::<E>()
/// }
/// ```
// Boxed, because every result of this crate is as large as its error.
pub struct PostgresError(Box<(Details, Box<dyn StdError + Send + Sync>)>);

/// What a driver's error reports.
#[allow(missing_docs)] // hidden
#[derive(Default)]
pub struct Details {
    pub sqlstate: Option<String>,
    pub message: String,
    pub constraint: Option<String>,
    pub without_sqlstate: WithoutSqlstate,
}

/// What an error without a SQLSTATE means.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum WithoutSqlstate {
    /// The driver rejected a value or could not read an answer.
    #[default]
    Rejected,
    /// There was no connection, so nothing was sent.
    NoConnection,
    /// The connection was lost without an answer.
    ConnectionLost,
    /// PostgreSQL reported an error, but the driver does not expose the SQLSTATE.
    NotExposed,
}

/// An error of a driver.
#[allow(missing_docs)] // hidden
pub trait DriverError: StdError + Send + Sync + 'static {
    fn details(&self) -> Details;
}

impl PostgresError {
    /// The SQLSTATE, if PostgreSQL reported the error: `40001` for a serialization failure, `40P01` for a deadlock. This crate
    /// also uses `25P01` if a call needs an open transaction, and `25001` if a call must not be in one.
    ///
    /// diesel does not expose it. This crate derives it for violated constraints, serialization failures and read-only
    /// transactions. It recognizes other errors by their message, if the server's `lc_messages` is English.
    pub fn sqlstate(&self) -> Option<&str> {
        self.0.0.sqlstate.as_deref()
    }

    /// The violated constraint.
    pub fn constraint(&self) -> Option<&str> {
        self.0.0.constraint.as_deref()
    }

    /// Whether the connection is lost. If this happened during a COMMIT, its outcome is unknown.
    pub fn is_connection_lost(&self) -> bool {
        self.0.0.without_sqlstate == WithoutSqlstate::ConnectionLost
            || self.sqlstate().is_some_and(ends_the_connection)
    }

    /// The driver's error. Downcast it to `tokio_postgres::Error`, `sqlx::Error`, `sea_orm::DbErr` or `diesel::result::Error`, of
    /// the version whose transaction or client the call used. Do not log it, because its text can quote the payload.
    pub fn driver_error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.0.1
    }

    /// See [`PostgresError::driver_error`].
    pub fn into_driver_error(self) -> Box<dyn StdError + Send + Sync> {
        self.0.1
    }

    #[doc(hidden)]
    pub fn details(&self) -> &Details {
        &self.0.0
    }

    /// An error that this crate detects.
    pub(crate) fn detected(sqlstate: &str, message: &str) -> PostgresError {
        let details = Details {
            sqlstate: Some(sqlstate.to_owned()),
            message: message.to_owned(),
            ..Details::default()
        };
        PostgresError(Box::new((details, message.into())))
    }
}

impl<E: DriverError> From<E> for PostgresError {
    fn from(error: E) -> PostgresError {
        PostgresError(Box::new((error.details(), Box::new(error))))
    }
}

/// Class 08, and the codes of a shutdown, a crash and the timeouts of sessions and transactions.
fn ends_the_connection(sqlstate: &str) -> bool {
    sqlstate.starts_with("08") || matches!(sqlstate, "57P01" | "57P02" | "57P05" | "25P03" | "25P04")
}

impl fmt::Display for PostgresError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.0.message)?;
        match &self.0.0.sqlstate {
            Some(sqlstate) => write!(f, " (SQLSTATE {sqlstate})"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for PostgresError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresError({self})")
    }
}

// No source(), so that printing the chain of causes does not show the driver's DETAIL.
impl StdError for PostgresError {}
