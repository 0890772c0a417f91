use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeOwned, Error as _};
use thiserror::Error as ThisError;

use crate::call::Answer;
use crate::error::PostgresError;
use crate::event::HeaderValue;
use crate::event_id::{EventId, ParseEventIdError};
use crate::typed::OutboxEvent;

/// An event in the outbox, as it will be published. Display shows its type and key: `OrderPaid of order 42`.
///
/// ```no_run
/// # #[cfg(feature = "tokio-postgres")] mod example {
/// # async fn example(tx: &tokio_postgres::Transaction<'_>) -> Result<(), Box<dyn std::error::Error>> {
/// use pg_outbox::testing::{self, Filter};
///
/// let event = testing::assert_enqueued(tx, Filter::event("order", "OrderPlaced")).await?;
/// assert_eq!(event.aggregate_id, "42");
/// assert_eq!(event.headers.get("source").map(String::as_str), Some("shop"));
/// # Ok(()) }
/// # }
/// ```
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
    /// The other headers that are text.
    pub headers: BTreeMap<String, String>,
    /// The other headers that are bytes.
    pub binary_headers: BTreeMap<String, Vec<u8>>,
    /// The record's value; `None` for a tombstone.
    pub payload: Option<Vec<u8>>,
}

/// Why the outbox could not be read.
///
/// ```
/// use pg_outbox::testing::Error;
///
/// fn explain(error: &Error) -> String {
///     match error {
///         Error::OtherType { expected, found } => format!("{found} is not {expected}"),
///         other => other.to_string(),
///     }
/// }
/// ```
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// PostgreSQL rejected the call or is unavailable.
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    /// The headers or the payload are not JSON, or not the JSON of the expected type, or a header is not valid base64.
    #[error("the headers or the payload of an event are not the expected JSON")]
    Json(#[from] serde_json::Error),
    /// The event ID is not a UUID.
    #[error(transparent)]
    EventId(#[from] ParseEventIdError),
    /// The event has another aggregate type or event type.
    #[error("expected an event {expected}, but found {found}")]
    OtherType {
        /// The event type and the aggregate type of the expected event.
        expected: String,
        /// The event.
        found: String,
    },
}

impl Enqueued {
    /// The payload as JSON; `Null` for a tombstone.
    ///
    /// ```no_run
    /// # fn example(event: &pg_outbox::testing::Enqueued) -> Result<(), pg_outbox::testing::Error> {
    /// assert_eq!(event.json()?["cents"], 1200);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Json`].
    pub fn json(&self) -> Result<serde_json::Value, Error> {
        let payload = self.payload.as_deref().map(serde_json::from_slice);
        Ok(payload.transpose()?.unwrap_or_default())
    }

    /// The typed event.
    ///
    /// ```no_run
    /// # #[cfg(feature = "derive")] mod example {
    /// # #[derive(serde::Serialize, serde::Deserialize, pg_outbox::OutboxEvent)]
    /// # #[outbox(aggregate = "order", key = "order_id")]
    /// # struct OrderPaid { order_id: i64 }
    /// # fn example(event: &pg_outbox::testing::Enqueued) -> Result<(), pg_outbox::testing::Error> {
    /// let event: OrderPaid = event.event()?;
    /// assert_eq!(event.order_id, 42);
    /// # Ok(()) }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::OtherType`], or [`Error::Json`] if the payload is not the JSON of this type.
    pub fn event<E: OutboxEvent + DeserializeOwned>(&self) -> Result<E, Error> {
        if (E::AGGREGATE_TYPE, E::EVENT_TYPE) != (&self.aggregate_type, &self.event_type) {
            let expected = format!("{} of {}", E::EVENT_TYPE, E::AGGREGATE_TYPE);
            return Err(Error::OtherType { expected, found: self.to_string() });
        }
        Ok(serde_json::from_slice(self.payload.as_deref().unwrap_or(b"null"))?)
    }
}

impl fmt::Display for Enqueued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} {}", self.event_type, self.aggregate_type, self.aggregate_id)
    }
}

/// A row of the outbox as the server returns it. A row that the filter does not select may be malformed.
pub(super) struct Row {
    event_id: String,
    aggregate_type: String,
    aggregate_id: String,
    event_type: String,
    headers: Option<String>,
    payload: Option<Vec<u8>>,
}

impl Row {
    pub(super) fn from_answer(mut answer: Answer) -> Row {
        let mut text = || answer.text().unwrap_or_default();
        let (event_id, aggregate_type, aggregate_id, event_type) = (text(), text(), text(), text());
        let headers = answer.text();
        let is_bytea = answer.text().as_deref() == Some("bytea");
        let payload = answer.text().map(|text| if is_bytea { parse_hex(&text) } else { text.into_bytes() });
        Row { event_id, aggregate_type, aggregate_id, event_type, headers, payload }
    }

    pub(super) fn parse(self) -> Result<Enqueued, Error> {
        let Row { event_id, aggregate_type, aggregate_id, event_type, headers, payload } = self;
        // JSON null counts as no headers.
        let all: Option<BTreeMap<String, HeaderValue>> =
            headers.map_or(Ok(None), |headers| serde_json::from_str(&headers))?;
        let (mut headers, mut binary_headers) = (BTreeMap::new(), BTreeMap::new());
        for (name, value) in all.unwrap_or_default() {
            match value {
                HeaderValue::Text(text) => drop(headers.insert(name, text)),
                HeaderValue::Binary { base64 } => {
                    // As for the relay, white space does not matter.
                    let digits: String = base64.split_ascii_whitespace().collect();
                    let bytes = STANDARD.decode(digits).map_err(serde_json::Error::custom)?;
                    binary_headers.insert(name, bytes);
                }
            }
        }
        let event_id = event_id.parse()?;
        Ok(Enqueued { event_id, aggregate_type, aggregate_id, event_type, headers, binary_headers, payload })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} {}", self.event_type, self.aggregate_type, self.aggregate_id)
    }
}

/// Parses the text form of bytea, such as `\x00ff`.
fn parse_hex(text: &str) -> Vec<u8> {
    let digits = text.strip_prefix("\\x").unwrap_or(text).as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
    digits.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
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
