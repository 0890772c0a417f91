use thiserror::Error;

#[cfg(feature = "_driver")]
use crate::table::TableNameError;
#[cfg(feature = "_driver")]
use crate::topic::TemplateError;
use crate::topic::TopicError;

#[cfg(feature = "diesel-async")]
mod diesel;
#[cfg(feature = "_driver")]
mod postgres;
#[cfg(feature = "sea-orm")]
mod sea_orm;
#[cfg(feature = "sqlx")]
mod sqlx;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

#[cfg(feature = "_driver")]
pub use postgres::PostgresError;
#[cfg(all(feature = "_driver", feature = "retry"))]
pub(crate) use postgres::{Said, Says, Unsaid};

/// Why an event was not enqueued. No message holds a payload or the value of a header.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The payload cannot be serialised.
    #[error("the payload cannot be serialised as JSON")]
    Json(#[from] serde_json::Error),

    /// The name given to [`Outbox::new`](crate::Outbox::new) is not one of a table.
    #[cfg(feature = "_driver")]
    #[error(transparent)]
    TableName(#[from] TableNameError),

    /// The template given to [`Outbox::topic_template`](crate::Outbox::topic_template) makes no topics.
    #[cfg(feature = "_driver")]
    #[error("the topic template is not usable: {0}")]
    TopicTemplate(#[from] TemplateError),

    /// An event that the relay could not deliver. Found before Postgres was asked anything: the
    /// transaction is as it was, and none of the call's events is in it.
    #[error("event {position} of the call cannot be enqueued: {reason}")]
    InvalidEvent {
        /// Which of the call's events; the first one is 1.
        position: usize,
        /// What is wrong with it.
        reason: InvalidEvent,
    },

    /// The outbox table does not exist in this database.
    #[cfg(feature = "_driver")]
    #[error("there is no outbox table {table} in this database: create it with `outbox-relay migrate`")]
    NoOutbox {
        /// The table, as in SQL.
        table: String,
        /// What Postgres said.
        source: PostgresError,
    },

    /// The payload column is of a type that the relay does not read.
    #[cfg(feature = "_driver")]
    #[error("the payload column of {table} is of type {column_type}; it must be json, jsonb or bytea")]
    UnsupportedPayload {
        /// The table, as in SQL.
        table: String,
        /// The type of its payload column.
        column_type: String,
    },

    /// Postgres took the statement but stored another number of rows: a trigger, a rule or a policy of the
    /// table swallows events. Roll back.
    #[cfg(feature = "_driver")]
    #[error("{table} stored {stored} of {given} events: has it a trigger or rule that skips rows?")]
    NotStored {
        /// The table, as in SQL.
        table: String,
        /// How many events the call had.
        given: u64,
        /// How many rows Postgres counted.
        stored: u64,
    },

    /// The connection has no open transaction. Found before Postgres was asked anything. Only diesel, which has no
    /// type for transactions, can get here.
    #[cfg(feature = "_driver")]
    #[error("the events were not inserted, since no transaction is open: enqueue within `transaction(..)`")]
    NoTransaction {
        /// SQLSTATE 25P01, as Postgres would say it.
        source: PostgresError,
    },

    /// Postgres refused the events or is out of reach. Roll back.
    #[cfg(feature = "_driver")]
    #[error("the events could not be inserted into {table}")]
    Postgres {
        /// The table, as in SQL.
        table: String,
        /// What Postgres said.
        source: PostgresError,
    },
}

/// What is wrong with an event.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidEvent {
    /// A text that must not be empty. For the aggregate id, Kafka would take it, but all events without a
    /// key would share one partition and one order: nearly always a mistake.
    #[error("{field} is empty")]
    Empty {
        /// Which one.
        field: &'static str,
    },
    /// A text with the character U+0000, which Postgres cannot store.
    #[error("{field} holds the character U+0000, which Postgres cannot store")]
    Nul {
        /// Which one.
        field: &'static str,
    },
    /// A header that the relay writes itself.
    #[error("the header {name:?} is written by the relay; choose another name")]
    ReservedHeader {
        /// Its name.
        name: String,
    },
    /// The aggregate type leads to a topic that cannot exist.
    #[error("aggregate_type {aggregate_type:?} gives the topic {topic:?}: {reason}")]
    Topic {
        /// The aggregate type of the event.
        aggregate_type: String,
        /// The topic that the template makes of it.
        topic: String,
        /// What is wrong with the topic.
        reason: TopicError,
    },
}
