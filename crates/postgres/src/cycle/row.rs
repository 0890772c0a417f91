//! A row of the outbox, as received. Values are copied only when the record is built.

use crate::columns::PayloadType;
use relay::lanes::Lane;
use relay::outbox::{Event, Payload};
use std::error::Error;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;

/// The columns of the claim's read, in order. `ctid` is read only with `on_sent = "delete"`.
pub(crate) mod column {
    /// The version of the set of holds.
    pub(crate) const HOLD_VERSION: usize = 0;
    /// The epoch for which the marks are valid.
    pub(crate) const EPOCH: usize = 1;
    /// NULL if there is no row.
    pub(crate) const ID: usize = 2;
    pub(crate) const LANE: usize = 3;
    pub(crate) const EVENT_ID: usize = 4;
    pub(crate) const AGGREGATE_TYPE: usize = 5;
    pub(crate) const AGGREGATE_ID: usize = 6;
    pub(crate) const EVENT_TYPE: usize = 7;
    pub(crate) const PAYLOAD: usize = 8;
    pub(crate) const TOO_LARGE: usize = 9;
    pub(crate) const HEADERS: usize = 10;
    pub(crate) const CREATED_AT: usize = 11;
    pub(crate) const CTID: usize = 12;
    /// The name of the last column, if the outbox has the column `topic`.
    pub(crate) const TOPIC: &str = "outbox_relay_topic";
}

/// Microseconds between the epochs of Unix (1970) and PostgreSQL (2000).
const POSTGRES_EPOCH_US: i64 = 946_684_800_000_000;

pub struct OutboxRow {
    row: Row,
    id: i64,
    lane: Lane,
    /// The type of the payload column when the row was read; `None` if the relay does not support it.
    pub(crate) payload_type: Option<PayloadType>,
    has_topic: bool,
}

impl OutboxRow {
    /// The row must have an id.
    pub fn new(row: Row) -> Result<OutboxRow, tokio_postgres::Error> {
        let id = row.try_get(column::ID)?;
        let lane: i16 = row.try_get(column::LANE)?;
        // The lane table has a CHECK constraint, and the relay checks its 64 rows at start.
        let lane = Lane::new(lane.into()).unwrap_or_else(|| unreachable!("lane {lane} does not exist"));
        // From this result, because the type of the column can change while the relay runs.
        let payload_type = PayloadType::of(row.columns()[column::PAYLOAD].type_());
        let has_topic = row.columns().last().is_some_and(|last| last.name() == column::TOPIC);
        Ok(OutboxRow { row, id, lane, payload_type, has_topic })
    }

    /// The place of the row, to delete it without an index.
    pub(crate) fn ctid(&self) -> Option<Ctid> {
        Some(Ctid(self.bytes(column::CTID)?.try_into().ok()?))
    }

    fn bytes(&self, column: usize) -> Option<&[u8]> {
        // `Bytes` accepts every type, so this cannot fail.
        self.row.try_get::<_, Option<Bytes<'_>>>(column).ok().flatten().map(|bytes| bytes.0)
    }
}

impl Event for OutboxRow {
    fn id(&self) -> i64 {
        self.id
    }

    fn event_id(&self) -> Uuid {
        self.bytes(column::EVENT_ID).and_then(|bytes| Uuid::from_slice(bytes).ok()).unwrap_or_default()
    }

    fn lane(&self) -> Lane {
        self.lane
    }

    fn aggregate_type(&self) -> &[u8] {
        self.bytes(column::AGGREGATE_TYPE).unwrap_or_default()
    }

    fn topic(&self) -> Option<&[u8]> {
        if self.has_topic { self.bytes(self.row.len() - 1) } else { None }
    }

    fn key(&self) -> &[u8] {
        self.bytes(column::AGGREGATE_ID).unwrap_or_default()
    }

    fn event_type(&self) -> &[u8] {
        self.bytes(column::EVENT_TYPE).unwrap_or_default()
    }

    fn payload(&self) -> Payload<'_> {
        if let Ok(Some(bytes)) = self.row.try_get(column::TOO_LARGE) {
            return Payload::TooLarge { bytes };
        }
        match self.bytes(column::PAYLOAD) {
            None => Payload::Tombstone,
            Some(wire) if self.payload_type == Some(PayloadType::Jsonb) => Payload::Bytes(jsonb_text(wire)),
            Some(wire) => Payload::Bytes(wire),
        }
    }

    fn headers(&self) -> Option<&[u8]> {
        // Many libraries write a missing value as JSON null.
        self.bytes(column::HEADERS).map(jsonb_text).filter(|json| *json != b"null")
    }

    fn created_at_us(&self) -> i64 {
        let wire = self.bytes(column::CREATED_AT).and_then(|bytes| bytes.try_into().ok());
        wire.map_or(0, |wire| i64::from_be_bytes(wire).saturating_add(POSTGRES_EPOCH_US))
    }

    fn size(&self) -> usize {
        self.row.raw_size_bytes()
    }
}

/// The binary format of jsonb is a version byte and the text.
fn jsonb_text(wire: &[u8]) -> &[u8] {
    wire.get(1..).unwrap_or_default()
}

/// The bytes of a value of any type, as received.
struct Bytes<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Bytes<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Bytes(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// The place of a row: its block, and its position in the block.
#[derive(Debug)]
pub(crate) struct Ctid([u8; 6]);

impl ToSql for Ctid {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut tokio_postgres::types::private::BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TID
    }

    to_sql_checked!();
}
