//! The insert for drivers that bind only plain types: text, bytea, and arrays of them without NULLs.
//!
//! The statements cast the parameters to the types of the table. A payload is sent as bytes, and converted to text and then to
//! json. The result is the same as for a json parameter.

use std::future::Future;

use super::failure;
use crate::call::{Answer, Argument, Call, Kind};
use crate::error::{Error, PostgresError};
use crate::event::Event;
use crate::insert::{Insert, PayloadKind};
use crate::table::TableName;

/// An open transaction, or a connection.
pub trait Plain: Send {
    /// Runs a statement, and returns its rows.
    fn rows(
        &mut self,
        call: &Call,
        arguments: &[Argument<'_>],
    ) -> impl Future<Output = Result<Vec<Answer>, PostgresError>> + Send;

    /// Runs a statement, and returns the number of stored rows.
    fn execute(
        &mut self,
        sql: &str,
        arguments: &[Argument<'_>],
    ) -> impl Future<Output = Result<u64, PostgresError>> + Send;
}

/// The statements for one outbox table.
#[derive(Debug)]
pub struct Statements {
    payload_type: Call,
    one_json: String,
    one_bytea: String,
    many_json: String,
    many_bytea: String,
}

impl Statements {
    pub fn new(table: &TableName) -> Statements {
        Statements {
            payload_type: Call::new(PAYLOAD_TYPE.to_owned(), &[Kind::Flag, Kind::Text]),
            one_json: insert_one(table, "convert_from($6, 'UTF8')::json"),
            one_bytea: insert_one(table, "$6"),
            many_json: insert_many(table, "convert_from(e.payload, 'UTF8')::json"),
            many_bytea: insert_many(table, "e.payload"),
        }
    }

    fn one(&self, payload: PayloadKind) -> &str {
        match payload {
            PayloadKind::Json => &self.one_json,
            PayloadKind::Bytea => &self.one_bytea,
        }
    }

    fn many(&self, payload: PayloadKind) -> &str {
        match payload {
            PayloadKind::Json => &self.many_json,
            PayloadKind::Bytea => &self.many_bytea,
        }
    }
}

/// Whether the table exists, and the type of its payload column.
const PAYLOAD_TYPE: &str = "
    SELECT o.oid IS NOT NULL,
           (SELECT t.typname::text
            FROM pg_catalog.pg_attribute AS a JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
            WHERE a.attrelid = o.oid AND a.attname = 'payload' AND NOT a.attisdropped)
    FROM (SELECT to_regclass($1)) AS o (oid)";

fn insert_one(table: &TableName, payload: &str) -> String {
    format!(
        "INSERT INTO {table} (event_id, aggregate_type, aggregate_id, event_type, headers, payload)
         VALUES ($1::text::uuid, $2, $3, $4, nullif($5, '')::jsonb, {payload})"
    )
}

/// Sorted by position in the arrays. Identity values are assigned after the sort, so they have the order of the input.
fn insert_many(table: &TableName, payload: &str) -> String {
    format!(
        "INSERT INTO {table} (event_id, aggregate_type, aggregate_id, event_type, headers, payload)
         SELECT e.event_id::uuid, e.aggregate_type, e.aggregate_id, e.event_type, nullif(e.headers, '')::jsonb,
                CASE WHEN e.has_payload THEN {payload} END
         FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bool[], $7::bytea[])
              WITH ORDINALITY
              AS e (event_id, aggregate_type, aggregate_id, event_type, headers, has_payload, payload, position)
         ORDER BY e.position"
    )
}

/// Inserts one or more events. Needs one round trip once the type of the payload column is known.
pub async fn insert(connection: &mut impl Plain, insert: &Insert, events: &[Event]) -> Result<u64, Error> {
    let payload = match insert.known_payload() {
        Some(payload) => payload,
        None => learn_payload(connection, insert).await?,
    };
    let inserted = match events {
        [event] => insert_event(connection, insert.plain().one(payload), event).await,
        _ => insert_events(connection, insert.plain().many(payload), events).await,
    };
    inserted.map_err(|error| {
        // The type of the column may have changed. A driver that does not expose the SQLSTATE may report that too.
        if matches!(error.sqlstate(), Some("42804") | None) {
            insert.forget_payload();
        }
        failure(insert, error)
    })
}

async fn learn_payload(connection: &mut impl Plain, insert: &Insert) -> Result<PayloadKind, Error> {
    let arguments = [Argument::Text(insert.table())];
    let rows = connection.rows(&insert.plain().payload_type, &arguments).await;
    let rows = rows.map_err(|error| failure(insert, error))?;
    let Some(mut row) = rows.into_iter().next() else { unreachable!("the statement returns one row") };
    if !row.flag() {
        let message = format!("relation {} does not exist", insert.table());
        return Err(failure(insert, PostgresError::detected("42P01", &message)));
    }
    insert.learn_payload(row.text().as_deref().unwrap_or("unknown"))
}

async fn insert_event(connection: &mut impl Plain, sql: &str, event: &Event) -> Result<u64, PostgresError> {
    let (event_id, headers) = (event.id.to_string(), headers(event));
    let arguments = [
        Argument::Text(&event_id),
        Argument::Text(&event.aggregate_type),
        Argument::Text(&event.aggregate_id),
        Argument::Text(&event.event_type),
        Argument::Text(&headers),
        Argument::Bytes(event.payload.0.as_deref()),
    ];
    connection.execute(sql, &arguments).await
}

async fn insert_events(
    connection: &mut impl Plain,
    sql: &str,
    events: &[Event],
) -> Result<u64, PostgresError> {
    let event_ids: Vec<String> = events.iter().map(|event| event.id.to_string()).collect();
    let headers: Vec<String> = events.iter().map(headers).collect();
    let event_ids: Vec<&str> = event_ids.iter().map(String::as_str).collect();
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    let texts = |of: fn(&Event) -> &str| -> Vec<&str> { events.iter().map(of).collect() };
    let aggregate_types = texts(|event| &event.aggregate_type);
    let aggregate_ids = texts(|event| &event.aggregate_id);
    let event_types = texts(|event| &event.event_type);
    let has_payload: Vec<bool> = events.iter().map(|event| event.payload.0.is_some()).collect();
    let payloads: Vec<&[u8]> =
        events.iter().map(|event| event.payload.0.as_deref().unwrap_or_default()).collect();
    let arguments = [
        Argument::Texts(&event_ids),
        Argument::Texts(&aggregate_types),
        Argument::Texts(&aggregate_ids),
        Argument::Texts(&event_types),
        Argument::Texts(&headers),
        Argument::Flags(&has_payload),
        Argument::ByteStrings(&payloads),
    ];
    connection.execute(sql, &arguments).await
}

/// Without headers, the text is empty and the column is NULL, as in a row that was inserted manually.
fn headers(event: &Event) -> String {
    if event.headers.is_empty() {
        return String::new();
    }
    serde_json::to_string(&event.headers).expect("a map from strings is JSON")
}
