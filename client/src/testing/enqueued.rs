use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeOwned, Error as _};
use thiserror::Error as ThisError;

use crate::error::PostgresError;
use crate::event::HeaderValue;
use crate::event_id::{EventId, ParseEventIdError};
use crate::statement::Answer;
use crate::typed::OutboxEvent;

/// An event in the outbox, as it will be published. Display shows its type and key: `OrderPaid of order 42`.
///
/// ```
/// fn has_source(event: &pg_outbox::testing::Enqueued) -> bool {
///     event.headers.get("source").map(String::as_str) == Some("shop")
/// }
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
/// fn is_of_another_type(error: &Error) -> bool {
///     matches!(error, Error::OtherType { .. })
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
    /// # Errors
    ///
    /// [`Error::Json`].
    pub fn json(&self) -> Result<serde_json::Value, Error> {
        let payload = self.payload.as_deref().map(serde_json::from_slice);
        Ok(payload.transpose()?.unwrap_or_default())
    }

    /// The typed event.
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

    /// The event of a row, with its description. A row that the filter does not select may be malformed.
    pub(super) fn read(mut row: Answer) -> (String, Result<Enqueued, Error>) {
        let mut text = || row.text().unwrap_or_default();
        let (event_id, aggregate_type, aggregate_id, event_type) = (text(), text(), text(), text());
        let (headers, payload) = (row.text(), row.bytes());
        let description = format!("{event_type} of {aggregate_type} {aggregate_id}");
        let parse = || {
            let (headers, binary_headers) = parse_headers(headers.as_deref())?;
            let event_id = event_id.parse()?;
            Ok(Enqueued {
                event_id,
                aggregate_type,
                aggregate_id,
                event_type,
                headers,
                binary_headers,
                payload,
            })
        };
        (description, parse())
    }
}

impl fmt::Display for Enqueued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} {}", self.event_type, self.aggregate_type, self.aggregate_id)
    }
}

type Headers = (BTreeMap<String, String>, BTreeMap<String, Vec<u8>>);

/// JSON null counts as no headers.
fn parse_headers(json: Option<&str>) -> Result<Headers, Error> {
    let all: Option<BTreeMap<String, HeaderValue>> = json.map_or(Ok(None), serde_json::from_str)?;
    let (mut texts, mut binary) = Headers::default();
    for (name, value) in all.unwrap_or_default() {
        match value {
            HeaderValue::Text(text) => drop(texts.insert(name, text)),
            HeaderValue::Binary { base64 } => {
                // As for the relay, white space does not matter.
                let digits: String = base64.split_ascii_whitespace().collect();
                drop(binary.insert(name, STANDARD.decode(digits).map_err(serde_json::Error::custom)?));
            }
        }
    }
    Ok((texts, binary))
}
