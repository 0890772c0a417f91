//! A simulated event. It is small and `Copy`.

use relay::lanes::Lane;
use relay::outbox::{Event, Payload};
use uuid::Uuid;

/// The possible topics. The template is the aggregate type itself, the event type, or the first topic.
pub const TOPICS: [&str; 3] = ["a", "b", "c"];
/// The aggregate types, if they do not determine the topic.
const KINDS: [&str; 2] = ["order", "customer"];
const EVENT_TYPE: &str = "Happened";
/// The possible keys.
const KEYS: [&str; 6] = ["key 0", "key 1", "key 2", "key 3", "key 4", "key 5"];
/// The size of an event, and the size of an event that is too large for its topic.
const BYTES: u16 = 100;
const TOO_MANY_BYTES: u16 = 300;

/// One event as it was written.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct SimEvent {
    pub id: i64,
    /// The event itself, whatever its id.
    pub identity: u32,
    pub topic: u8,
    pub key: u8,
    lane: u8,
    bytes: u16,
    /// The relay recognizes it by its id alone. Only in sabotaged worlds.
    by_id_alone: bool,
    /// Its aggregate type, if that is not its topic.
    pub kind: u8,
    keys: Keys,
    /// It names its topic in the column, unless that is the first topic. Otherwise its event type may be its topic.
    is_named: bool,
}

/// Which rows a block or pause of a key covers.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Keys {
    /// The aggregate type determines the topic: those of the topic and key.
    PerTopic,
    /// Something else determines the topic: those of the key.
    AcrossTopics,
    /// Something else determines the topic, but only those of the aggregate type are covered. Only in sabotaged worlds.
    PerType,
}

impl SimEvent {
    pub fn new(id: i64, identity: u32, topic: u8, key: u8, lanes: u64, by_id_alone: bool) -> SimEvent {
        let lane = (u64::from(key) % lanes * 21) as u8;
        let keys = Keys::PerTopic;
        SimEvent { id, identity, topic, key, lane, bytes: BYTES, by_id_alone, kind: 0, keys, is_named: false }
    }

    /// The same event, if its event type is its topic, or if it names its topic in the column.
    pub fn of_any_kind(self, keys: Keys, is_named: bool) -> SimEvent {
        SimEvent { kind: (self.identity % KINDS.len() as u32) as u8, keys, is_named, ..self }
    }

    /// Whether a block or pause of this key covers it. `of` is a topic or an aggregate type.
    pub fn has_key(&self, of: u8, key: u8) -> bool {
        let same = match self.keys {
            Keys::PerTopic => of == self.topic,
            Keys::AcrossTopics => true,
            Keys::PerType => of == self.kind,
        };
        same && key == self.key
    }

    /// Whether a block of this other event's key covers it.
    pub fn has_key_of(&self, other: &SimEvent) -> bool {
        let of = if self.keys == Keys::PerTopic { other.topic } else { other.kind };
        self.has_key(of, other.key)
    }

    /// The same event, but too large for its topic.
    pub fn too_large(self) -> SimEvent {
        SimEvent { bytes: TOO_MANY_BYTES, ..self }
    }

    /// The same event in another topic.
    pub fn in_topic(self, topic: u8) -> SimEvent {
        SimEvent { topic, ..self }
    }

    /// The same event in another row.
    pub fn inserted_again(self, id: i64) -> SimEvent {
        SimEvent { id, ..self }
    }

    /// Whether it is too large for its topic.
    pub fn is_too_large(&self) -> bool {
        self.bytes == TOO_MANY_BYTES
    }

    /// The event that the relay sent.
    pub fn seen_by_relay<E: Event>(event: &E, topic: u8) -> SimEvent {
        let key = KEYS.iter().position(|key| key.as_bytes() == event.key()).unwrap() as u8;
        let lane = event.lane().index() as u8;
        let identity = event.created_at_us() as u32;
        let bytes = event.size() as u16;
        let kind = KINDS.iter().position(|kind| kind.as_bytes() == event.aggregate_type());
        let keys = if kind.is_some() { Keys::AcrossTopics } else { Keys::PerTopic };
        let kind = kind.unwrap_or_default() as u8;
        let (id, by_id_alone, is_named) = (event.id(), false, false);
        SimEvent { id, identity, topic, key, lane, bytes, by_id_alone, kind, keys, is_named }
    }
}

/// The number of the topic of this name.
pub fn topic_number(name: &str) -> u8 {
    TOPICS.iter().position(|topic| *topic == name).unwrap() as u8
}

impl Event for SimEvent {
    fn id(&self) -> i64 {
        self.id
    }
    fn event_id(&self) -> Uuid {
        Uuid::from_u128(if self.by_id_alone { self.id as u128 } else { self.identity.into() })
    }
    fn lane(&self) -> Lane {
        Lane::new(self.lane.into()).unwrap()
    }
    fn aggregate_type(&self) -> &[u8] {
        match self.keys {
            Keys::PerTopic => TOPICS[self.topic as usize].as_bytes(),
            Keys::AcrossTopics | Keys::PerType => KINDS[self.kind as usize].as_bytes(),
        }
    }
    fn key(&self) -> &[u8] {
        KEYS[self.key as usize].as_bytes()
    }
    fn event_type(&self) -> &[u8] {
        match self.keys {
            Keys::AcrossTopics | Keys::PerType if !self.is_named => TOPICS[self.topic as usize].as_bytes(),
            _ => EVENT_TYPE.as_bytes(),
        }
    }
    fn topic(&self) -> Option<&[u8]> {
        (self.is_named && self.topic > 0).then(|| TOPICS[self.topic as usize].as_bytes())
    }
    fn payload(&self) -> Payload<'_> {
        Payload::Tombstone
    }
    fn headers(&self) -> Option<&[u8]> {
        None
    }
    /// Tells the models the identity of the event.
    fn created_at_us(&self) -> i64 {
        self.identity.into()
    }
    fn size(&self) -> usize {
        self.bytes.into()
    }
}
