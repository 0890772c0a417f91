//! For the tests of applications: what a transaction has enqueued, and what was committed, without a relay and Kafka.
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
//! [`drain`] hands over what was committed in the order in which a relay would publish it, for a test that feeds it to the
//! application's own consumer. Do not use it beside a relay: what is drained is never published.

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
    /// What consumers recognise a duplicate by.
    pub event_id: EventId,
    /// Chooses the topic.
    pub aggregate_type: String,
    /// The record's key.
    pub aggregate_id: String,
    /// The header `event_type`.
    pub event_type: String,
    /// The event's own headers.
    pub headers: BTreeMap<String, String>,
    /// The record's value; `None` is a tombstone.
    pub payload: Option<Vec<u8>>,
}

/// Why the outbox could not be read.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// Postgres refused, or is out of reach.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The row is not as this crate writes it.
    #[error("the outbox holds an event whose headers or payload are not JSON")]
    Json(#[from] serde_json::Error),
    /// The event's id is not as this crate writes it.
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

    fn read(mut answer: Answer) -> Result<Enqueued, Error> {
        let event_id = answer.text().unwrap_or_default().parse()?;
        let mut text = || answer.text().unwrap_or_default();
        let (aggregate_type, aggregate_id, event_type) = (text(), text(), text());
        let headers = answer.text().map_or(Ok(BTreeMap::new()), |headers| serde_json::from_str(&headers))?;
        let is_bytea = answer.text().as_deref() == Some("bytea");
        let payload = answer.text().map(|text| if is_bytea { of_hex(&text) } else { text.into_bytes() });
        Ok(Enqueued { event_id, aggregate_type, aggregate_id, event_type, headers, payload })
    }
}

/// Reads how Postgres shows a bytea: `\x00ff`.
fn of_hex(text: &str) -> Vec<u8> {
    let digits = text.strip_prefix("\\x").unwrap_or(text).as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
    digits.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// The events that this transaction sees and no relay has sent, in the order of their ids: those of its own, and those
/// that were committed before.
///
/// # Errors
///
/// [`Error`].
pub async fn enqueued(transaction: impl OutboxTransaction, outbox: &Outbox) -> Result<Vec<Enqueued>, Error> {
    let select = call(&format!("SELECT * FROM {} WHERE sent_at IS NULL", outbox.table()));
    read(transaction.call(&select, &[]).await)
}

/// The only event of this type and key among [`enqueued`].
///
/// # Errors
///
/// [`Error`].
///
/// # Panics
///
/// If there is none, or more than one; it says which events there are instead.
pub async fn assert_enqueued(
    transaction: impl OutboxTransaction,
    outbox: &Outbox,
    event_type: &str,
    aggregate_id: impl fmt::Display,
) -> Result<Enqueued, Error> {
    let aggregate_id = aggregate_id.to_string();
    let all = enqueued(transaction, outbox).await?;
    let wanted = |event: &&Enqueued| event.event_type == event_type && event.aggregate_id == aggregate_id;
    let found: Vec<&Enqueued> = all.iter().filter(wanted).collect();
    match found[..] {
        [event] => Ok(event.clone()),
        _ => {
            let there: Vec<_> =
                all.iter().map(|event| format!("{} {}", event.event_type, event.aggregate_id)).collect();
            panic!(
                "{} events {event_type} of {aggregate_id} are enqueued, not one; there are {there:?}",
                found.len()
            )
        }
    }
}

/// Takes the committed events that no relay has sent out of the outbox, and hands them over in the order of their ids.
///
/// # Errors
///
/// [`Error`].
pub async fn drain(client: impl OutboxClient, outbox: &Outbox) -> Result<Vec<Enqueued>, Error> {
    let taken = call(&format!("DELETE FROM {} WHERE sent_at IS NULL RETURNING *", outbox.table()));
    read(client.call(&taken, &[]).await)
}

fn call(events: &str) -> Call {
    let sql = format!(
        "WITH event AS ({events})
         SELECT event_id::text, aggregate_type, aggregate_id, event_type, headers::text, pg_typeof(payload)::text,
                payload::text
         FROM event ORDER BY id"
    );
    Call::of(sql, COLUMNS)
}

fn read(answers: Result<Vec<Answer>, PostgresError>) -> Result<Vec<Enqueued>, Error> {
    let answers = answers.map_err(|error| DatabaseError::new("outbox", error))?;
    answers.into_iter().map(Enqueued::read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_read() {
        assert_eq!(of_hex("\\x00ff7a"), [0, 255, b'z']);
        assert_eq!(of_hex("\\x"), [0; 0]);
    }
}
