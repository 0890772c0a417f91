use std::error::Error;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;

use crate::event::Event;

/// The binary format of jsonb is this version byte and the text.
const JSONB_VERSION: u8 = 1;

/// Bytes for a json, jsonb or bytea column, sent unchanged.
#[derive(Debug)]
struct Document<B>(B);

impl<B: AsRef<[u8]> + std::fmt::Debug> ToSql for Document<B> {
    fn to_sql(&self, column: &Type, buffer: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        if *column == Type::JSONB {
            buffer.put_u8(JSONB_VERSION);
        }
        buffer.extend_from_slice(self.0.as_ref());
        Ok(IsNull::No)
    }

    fn accepts(column: &Type) -> bool {
        matches!(*column, Type::JSON | Type::JSONB | Type::BYTEA)
    }

    to_sql_checked!();
}

/// One event as the parameters of a statement.
pub struct Row<'a> {
    event: &'a Event,
    event_id: Uuid,
    payload: Option<Document<&'a [u8]>>,
    headers: Option<Document<Vec<u8>>>,
}

impl Row<'_> {
    pub fn of(event: &Event) -> Row<'_> {
        Row { event, event_id: *event.id.as_uuid(), payload: payload(event), headers: headers(event) }
    }

    pub fn parameters(&self) -> [&(dyn ToSql + Sync); 6] {
        let Event { aggregate_type, aggregate_id, event_type, .. } = self.event;
        [&self.event_id, aggregate_type, aggregate_id, event_type, &self.payload, &self.headers]
    }
}

/// Many events as the parameters of a statement: one array per column.
pub struct Columns<'a> {
    event_ids: Vec<Uuid>,
    aggregate_types: Vec<&'a str>,
    aggregate_ids: Vec<&'a str>,
    event_types: Vec<&'a str>,
    payloads: Vec<Option<Document<&'a [u8]>>>,
    headers: Vec<Option<Document<Vec<u8>>>>,
}

impl Columns<'_> {
    pub fn of(events: &[Event]) -> Columns<'_> {
        Columns {
            event_ids: events.iter().map(|event| *event.id.as_uuid()).collect(),
            aggregate_types: events.iter().map(|event| event.aggregate_type.as_str()).collect(),
            aggregate_ids: events.iter().map(|event| event.aggregate_id.as_str()).collect(),
            event_types: events.iter().map(|event| event.event_type.as_str()).collect(),
            payloads: events.iter().map(payload).collect(),
            headers: events.iter().map(headers).collect(),
        }
    }

    pub fn parameters(&self) -> [&(dyn ToSql + Sync); 6] {
        [
            &self.event_ids,
            &self.aggregate_types,
            &self.aggregate_ids,
            &self.event_types,
            &self.payloads,
            &self.headers,
        ]
    }
}

fn payload(event: &Event) -> Option<Document<&[u8]>> {
    event.payload.0.as_deref().map(Document)
}

/// Without headers, the column is NULL, as in a row that was inserted manually.
fn headers(event: &Event) -> Option<Document<Vec<u8>>> {
    if event.headers.is_empty() {
        return None;
    }
    Some(Document(serde_json::to_vec(&event.headers).expect("a map from strings is JSON")))
}
