use thiserror::Error;

use crate::table::TableNameError;
use crate::topic::TemplateError;
use crate::topic::TopicError;

#[cfg(feature = "_diesel")]
mod diesel;
mod postgres;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

pub use self::postgres::PostgresError;
pub use self::postgres::{Details, DriverError, WithoutSqlstate};

/// Why an event was not enqueued. Messages never contain a payload or the value of a header.
///
/// ```
/// use pg_outbox::Error;
///
/// /// Whether an event was rejected before a statement was sent.
/// fn is_unchanged(error: &Error) -> bool {
///     matches!(error, Error::InvalidEvent { .. } | Error::Json(_) | Error::NoTransaction { .. })
/// }
///
/// let error = pg_outbox::Outbox::new("app.outbox; DROP TABLE customer").unwrap_err();
/// assert!(matches!(error, Error::TableName(_)) && !is_unchanged(&error));
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

    /// The connection has no open transaction. No statement was sent. Only connections of sqlx and diesel can cause this error,
    /// because the types of other drivers rule it out.
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
