use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::event_id::EventId;
use crate::typed::OutboxEvent;

/// An event of an aggregate, to be enqueued in the transaction of the change.
///
/// Create it with [`Event::new`], and complete it with [`json`](Event::json), [`bytes`](Event::bytes) or
/// [`tombstone`](Event::tombstone). Without one of these, it is an `Event<NoPayload>`, which cannot be enqueued, so that a
/// forgotten payload does not become a tombstone.
///
/// ```
/// use pg_outbox::{Event, EventId, NoPayload, Payload};
///
/// let event = Event::new("order", 42, "OrderPlaced").json(&serde_json::json!({ "total": 1200 }))?.header("source", "shop");
/// // A bytea column can have any bytes, for example Protobuf. A header too, such as the ID of a schema.
/// let event = Event::new("order", 42, "OrderPlaced").bytes(b"\x08\x2a").binary_header("schema", 7_u64.to_be_bytes());
///
/// let incomplete: Event<NoPayload> = Event::new("customer", 7, "CustomerDeleted");
/// let id: EventId = "0197f5c2-9c5e-7e0a-8d1e-4b8a2f6c1d3e".parse()?; // from the request that is repeated
/// let event: Event<Payload> = incomplete.event_id(id).tombstone();
/// assert_eq!(event.id(), id);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```compile_fail,E0308
/// let event: pg_outbox::Event = pg_outbox::Event::new("order", 42, "OrderPlaced").header("source", "shop");
/// ```
#[derive(Clone)]
#[must_use = "an event does nothing until it is enqueued"]
pub struct Event<P = Payload> {
    pub(crate) id: EventId,
    pub(crate) aggregate_type: String,
    pub(crate) aggregate_id: String,
    pub(crate) event_type: String,
    pub(crate) headers: BTreeMap<String, HeaderValue>,
    pub(crate) payload: P,
}

/// The value of a header, as in the column `headers`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum HeaderValue {
    Text(String),
    Binary { base64: String },
}

/// The payload of a complete [`Event`]: bytes, or none for a tombstone. Debug shows only the length.
///
/// ```
/// let event: pg_outbox::Event<pg_outbox::Payload> = pg_outbox::Event::new("order", 42, "OrderPlaced").tombstone();
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Payload(pub(crate) Option<Vec<u8>>);

/// The payload of an incomplete [`Event`].
///
/// ```
/// let incomplete: pg_outbox::Event<pg_outbox::NoPayload> = pg_outbox::Event::new("order", 42, "OrderPlaced");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoPayload(());

impl Event<NoPayload> {
    /// Creates an incomplete event with a new [`EventId`].
    ///
    /// The aggregate type determines the topic. The aggregate ID is the record's key: events of one aggregate reach consumers
    /// in commit order. The event type becomes a header.
    pub fn new(
        aggregate_type: impl Into<String>,
        aggregate_id: impl fmt::Display,
        event_type: impl Into<String>,
    ) -> Event<NoPayload> {
        Event {
            id: EventId::new(),
            aggregate_type: aggregate_type.into(),
            aggregate_id: aggregate_id.to_string(),
            event_type: event_type.into(),
            headers: BTreeMap::new(),
            payload: NoPayload(()),
        }
    }

    /// Completes the event with a JSON payload.
    ///
    /// # Errors
    ///
    /// [`Error::Json`] if the value cannot be serialized.
    pub fn json(self, payload: &(impl Serialize + ?Sized)) -> Result<Event, Error> {
        Ok(self.bytes(serde_json::to_vec(payload)?))
    }

    /// Completes the event with a payload that is sent unchanged.
    ///
    /// A `json` or `jsonb` column accepts only JSON text in UTF-8. A `bytea` column accepts any bytes.
    pub fn bytes(self, payload: impl Into<Vec<u8>>) -> Event {
        self.complete(Some(payload.into()))
    }

    /// Completes the event without a value. The record removes the key from a compacted topic.
    pub fn tombstone(self) -> Event {
        self.complete(None)
    }

    fn complete(self, payload: Option<Vec<u8>>) -> Event {
        let Event { id, aggregate_type, aggregate_id, event_type, headers, payload: NoPayload(()) } = self;
        Event { id, aggregate_type, aggregate_id, event_type, headers, payload: Payload(payload) }
    }
}

impl Event {
    /// Creates a complete event with a new [`EventId`](crate::EventId) from a typed one. Use it to add headers or to set the
    /// ID: `Event::of(&paid)?.header("source", "shop")`.
    ///
    /// # Errors
    ///
    /// [`Error::Json`] if the value cannot be serialized.
    pub fn of<E: OutboxEvent + ?Sized>(event: &E) -> Result<Event, Error> {
        Event::new(E::AGGREGATE_TYPE, event.aggregate_id(), E::EVENT_TYPE).json(event)
    }
}

impl<P> Event<P> {
    /// Adds a record header, or replaces one of the same name.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Event<P> {
        self.headers.insert(name.into(), HeaderValue::Text(value.into()));
        self
    }

    /// Adds a record header whose value is any bytes, such as the ID of a schema, or replaces one of the same name.
    pub fn binary_header(mut self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Event<P> {
        self.headers.insert(name.into(), HeaderValue::Binary { base64: STANDARD.encode(value) });
        self
    }

    /// Sets the event ID. It should be unique: consumers ignore a second event with the same ID. The table does not check it.
    pub fn event_id(mut self, id: impl Into<EventId>) -> Event<P> {
        self.id = id.into();
        self
    }

    /// The event ID.
    pub fn id(&self) -> EventId {
        self.id
    }
}

impl<P: fmt::Debug> fmt::Debug for Event<P> {
    /// Shows only the names of the headers and the length of the payload.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("id", &self.id.as_uuid())
            .field("aggregate_type", &self.aggregate_type)
            .field("aggregate_id", &self.aggregate_id)
            .field("event_type", &self.event_type)
            .field("headers", &self.headers.keys())
            .field("payload", &self.payload)
            .finish()
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(bytes) => write!(f, "{} bytes", bytes.len()),
            None => f.write_str("tombstone"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft() -> Event<NoPayload> {
        Event::new("order", 42_i64, "OrderPlaced")
    }

    #[test]
    fn aggregate_ids_of_any_type_become_text() {
        let uuid = uuid::Uuid::now_v7();
        assert_eq!(Event::new("a", 42_i64, "E").aggregate_id, "42");
        assert_eq!(Event::new("a", uuid, "E").aggregate_id, uuid.to_string());
        assert_eq!(Event::new("a", "k-1", "E").aggregate_id, "k-1");
        assert_eq!(Event::new("a", String::from("k-2"), "E").aggregate_id, "k-2");
    }

    #[test]
    fn payloads_are_kept_unchanged() {
        let json = draft().json(&serde_json::json!({ "total": 12 })).unwrap();
        assert_eq!(json.payload.0.as_deref(), Some(&br#"{"total":12}"#[..]));
        assert_eq!(draft().bytes([0, 255]).payload.0, Some(vec![0, 255]));
        assert_eq!(draft().bytes("").payload.0, Some(vec![]));
        assert_eq!(draft().tombstone().payload.0, None);
    }

    #[test]
    fn headers_and_id_can_be_set_before_and_after_the_payload() {
        let id = EventId::new();
        let event =
            draft().header("a", "1").event_id(id).tombstone().binary_header("b", [0, 255]).header("a", "3");
        assert_eq!(event.id(), id);
        let headers = serde_json::to_string(&event.headers).unwrap();
        assert_eq!(headers, r#"{"a":"3","b":{"base64":"AP8="}}"#);
    }

    #[test]
    fn a_value_that_cannot_be_serialized_is_an_error() {
        let pairs = std::collections::HashMap::from([((1, 2), 3)]);
        assert!(matches!(draft().json(&pairs), Err(Error::Json(_))));
    }

    #[test]
    fn debug_does_not_show_content() {
        let event = draft().bytes("secret-payload").header("authorization", "secret-header");
        let shown = format!("{event:?}");
        assert!(!shown.contains("secret"), "{shown}");
        assert!(shown.contains("payload: 14 bytes") && shown.contains("authorization"), "{shown}");
        assert!(format!("{:?}", draft().tombstone()).contains("payload: tombstone"));
    }
}
