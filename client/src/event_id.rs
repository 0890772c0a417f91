use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

/// Identifies an event, so that consumers can recognize duplicates.
///
/// The relay sends it as the record header `event_id`.
///
/// ```
/// use pg_outbox::EventId;
///
/// let id = EventId::new();
/// assert_eq!(id.as_uuid().get_version_num(), 7);
/// assert_eq!(id.to_string().parse(), Ok(id)); // the text of the header
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventId(Uuid);

impl EventId {
    /// A new ID, which is a version 7 UUID. The IDs that one process creates are in ascending order.
    #[allow(clippy::new_without_default)] // a default should not differ each time
    pub fn new() -> EventId {
        EventId(Uuid::now_v7())
    }

    /// The ID as a UUID.
    pub fn as_uuid(&self) -> &Uuid {
        &self.0
    }
}

impl From<Uuid> for EventId {
    fn from(uuid: Uuid) -> EventId {
        EventId(uuid)
    }
}

impl From<EventId> for Uuid {
    fn from(id: EventId) -> Uuid {
        id.0
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The text is not a UUID.
///
/// ```
/// let error: pg_outbox::ParseEventIdError = "42".parse::<pg_outbox::EventId>().unwrap_err();
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the event id is not a UUID: {0}")]
pub struct ParseEventIdError(uuid::Error);

impl FromStr for EventId {
    type Err = ParseEventIdError;

    fn from_str(text: &str) -> Result<EventId, ParseEventIdError> {
        text.parse().map(EventId).map_err(ParseEventIdError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_ids_are_of_version_7_and_ascend() {
        let ids: Vec<EventId> = (0..1000).map(|_| EventId::new()).collect();
        assert!(ids.iter().all(|id| id.as_uuid().get_version_num() == 7));
        assert!(ids.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn ids_round_trip_through_text_and_json() {
        let id = EventId::new();
        assert_eq!(id.to_string().parse(), Ok(id));
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json, format!("\"{id}\""));
        assert_eq!(serde_json::from_str::<EventId>(&json).unwrap(), id);
        assert!("42".parse::<EventId>().is_err());
    }
}
