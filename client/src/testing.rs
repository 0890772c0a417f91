//! For the tests of applications: reads enqueued and committed events, without a relay and Kafka.
//!
//! ```no_run
//! # #[cfg(feature = "tokio-postgres")] mod example {
//! # async fn place_order(_: &tokio_postgres::Transaction<'_>) {}
//! use pg_outbox::{Outbox, testing};
//!
//! async fn an_order_announces_itself(client: &mut tokio_postgres::Client) -> Result<(), testing::Error> {
//!     let tx = client.transaction().await.unwrap();
//!     place_order(&tx).await;
//!     let event = testing::assert_enqueued(&tx, &Outbox::default(), "OrderPlaced", 42).await?;
//!     assert_eq!(event.json()?["total"], 1200);
//!     tx.rollback().await.unwrap();
//!     Ok(())
//! }
//! # }
//! ```
//!
//! [`drain`] returns committed events in the order in which a relay would publish them, so that a test can pass them to the
//! application's consumer. Do not use it together with a relay, because drained events are never published.

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error as ThisError;

use crate::call::{Answer, Call, DatabaseError, Kind};
use crate::driver::{OutboxClient, OutboxTransaction};
use crate::error::PostgresError;
use crate::event_id::{EventId, ParseEventIdError};
use crate::outbox::Outbox;

const COLUMNS: &[Kind] =
    &[Kind::Text, Kind::Text, Kind::Text, Kind::Text, Kind::Text, Kind::Text, Kind::Text];

/// An event in the outbox, as it will be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enqueued {
    /// The header `event_id`.
    pub event_id: EventId,
    /// Determines the topic.
    pub aggregate_type: String,
    /// The record's key.
    pub aggregate_id: String,
    /// The header `event_type`.
    pub event_type: String,
    /// The other headers.
    pub headers: BTreeMap<String, String>,
    /// The record's value; `None` for a tombstone.
    pub payload: Option<Vec<u8>>,
}

/// Why the outbox could not be read.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// PostgreSQL rejected the call or is unavailable.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The headers or the payload are not JSON.
    #[error("the outbox contains an event whose headers or payload is not JSON")]
    Json(#[from] serde_json::Error),
    /// The event id is not a UUID.
    #[error(transparent)]
    EventId(#[from] ParseEventIdError),
}

impl Enqueued {
    /// The payload as JSON; `Null` for a tombstone.
    ///
    /// # Errors
    ///
    /// [`Error::Json`].
    pub fn json(&self) -> Result<serde_json::Value, Error> {
        let payload = self.payload.as_deref().map(serde_json::from_slice);
        Ok(payload.transpose()?.unwrap_or_default())
    }

    fn from_answer(mut answer: Answer) -> Result<Enqueued, Error> {
        let event_id = answer.text().unwrap_or_default().parse()?;
        let mut text = || answer.text().unwrap_or_default();
        let (aggregate_type, aggregate_id, event_type) = (text(), text(), text());
        let headers = answer.text().map_or(Ok(BTreeMap::new()), |headers| serde_json::from_str(&headers))?;
        let is_bytea = answer.text().as_deref() == Some("bytea");
        let payload = answer.text().map(|text| if is_bytea { parse_hex(&text) } else { text.into_bytes() });
        Ok(Enqueued { event_id, aggregate_type, aggregate_id, event_type, headers, payload })
    }
}

/// Parses the text form of bytea, such as `\x00ff`.
fn parse_hex(text: &str) -> Vec<u8> {
    let digits = text.strip_prefix("\\x").unwrap_or(text).as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
    digits.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// The unsent events that are visible to this transaction, in the order of their ids: its own and committed ones.
///
/// # Errors
///
/// [`Error`].
pub async fn enqueued(transaction: impl OutboxTransaction, outbox: &Outbox) -> Result<Vec<Enqueued>, Error> {
    let select = call(&format!("SELECT * FROM {} WHERE sent_at IS NULL", outbox.table()));
    read(transaction.call(&select, &[]).await)
}

/// The only event of this type and key in [`enqueued`].
///
/// # Errors
///
/// [`Error`].
///
/// # Panics
///
/// If there is none, or more than one. The message lists the events.
pub async fn assert_enqueued(
    transaction: impl OutboxTransaction,
    outbox: &Outbox,
    event_type: &str,
    aggregate_id: impl fmt::Display,
) -> Result<Enqueued, Error> {
    let aggregate_id = aggregate_id.to_string();
    let all = enqueued(transaction, outbox).await?;
    let matches = |event: &&Enqueued| event.event_type == event_type && event.aggregate_id == aggregate_id;
    let found: Vec<&Enqueued> = all.iter().filter(matches).collect();
    match found[..] {
        [event] => Ok(event.clone()),
        _ => {
            let enqueued: Vec<_> =
                all.iter().map(|event| format!("{} {}", event.event_type, event.aggregate_id)).collect();
            panic!(
                "expected one event {event_type} of {aggregate_id}, but found {}; enqueued: {enqueued:?}",
                found.len()
            )
        }
    }
}

/// Removes the unsent committed events from the outbox, and returns them in the order of their ids.
///
/// # Errors
///
/// [`Error`].
pub async fn drain(client: impl OutboxClient, outbox: &Outbox) -> Result<Vec<Enqueued>, Error> {
    let delete = call(&format!("DELETE FROM {} WHERE sent_at IS NULL RETURNING *", outbox.table()));
    read(client.call(&delete, &[]).await)
}

fn call(events: &str) -> Call {
    let sql = format!(
        "WITH event AS ({events})
         SELECT event_id::text, aggregate_type, aggregate_id, event_type, headers::text, pg_typeof(payload)::text,
                payload::text
         FROM event ORDER BY id"
    );
    Call::statement(sql, COLUMNS)
}

fn read(answers: Result<Vec<Answer>, PostgresError>) -> Result<Vec<Enqueued>, Error> {
    let answers = answers.map_err(|error| DatabaseError::new("outbox", error))?;
    answers.into_iter().map(Enqueued::from_answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_parsed() {
        assert_eq!(parse_hex("\\x00ff7a"), [0, 255, b'z']);
        assert_eq!(parse_hex("\\x"), [0; 0]);
    }
}
