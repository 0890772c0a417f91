//! Inserts events, in the same way for every driver.
//!
//! The parameters are text, bytea, and arrays of them without NULLs, which every driver can bind. The statements cast them to
//! the types of the table. A payload is sent as bytes, and converted to text and then to json: with a jsonb parameter, an
//! insert into a json column would silently rewrite the text.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::driver::OutboxTransaction;
use crate::error::{Error, PostgresError};
use crate::event::Event;
use crate::statement::{Argument, Kind, Statement};
use crate::table::TableName;

/// An outbox table, and the type of its payload column.
#[derive(Debug)]
pub struct Insert {
    pub table: TableName,
    /// A [`Payload`], or 0 if it is unknown.
    payload: AtomicU8,
}

/// The type of the payload column. For a jsonb column, PostgreSQL applies its assignment cast from json.
#[derive(Debug, Clone, Copy)]
enum Payload {
    Json = 1,
    Bytea = 2,
}

/// Whether the table exists, and the type of its payload column.
const PAYLOAD_TYPE: &str = "
    SELECT o.oid IS NOT NULL,
           (SELECT t.typname::text
            FROM pg_catalog.pg_attribute AS a JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
            WHERE a.attrelid = o.oid AND a.attname = 'payload' AND NOT a.attisdropped)
    FROM (SELECT to_regclass($1)) AS o (oid)";

impl Insert {
    pub fn new(table: TableName) -> Insert {
        Insert { table, payload: AtomicU8::new(0) }
    }

    /// Inserts one or more events, and returns the number of stored rows. Needs one round trip once the type of the payload
    /// column is known.
    pub async fn run(&self, mut transaction: impl OutboxTransaction, events: &[Event]) -> Result<u64, Error> {
        transaction.in_transaction().map_err(|error| self.failure(error))?;
        let payload = match self.payload.load(Ordering::Relaxed) {
            1 => Payload::Json,
            2 => Payload::Bytea,
            _ => self.learn_payload(&mut transaction).await?,
        };
        let inserted = match events {
            [event] => self.insert_one(&mut transaction, payload, event).await,
            _ => self.insert_many(&mut transaction, payload, events).await,
        };
        inserted.map_err(|error| {
            // The type of the column may have changed. A driver that does not expose the SQLSTATE may report that too.
            if matches!(error.sqlstate(), Some("42804" | "42846") | None) {
                self.payload.store(0, Ordering::Relaxed);
            }
            self.failure(error)
        })
    }

    async fn learn_payload(&self, transaction: &mut impl OutboxTransaction) -> Result<Payload, Error> {
        let table = self.table.to_string();
        let statement = Statement::new(PAYLOAD_TYPE, &[Kind::Flag, Kind::Text]);
        let rows = transaction.rows(&statement, &[Argument::Text(&table)]).await;
        let mut rows = rows.map_err(|error| self.failure(error))?;
        let Some(row) = rows.first_mut() else { unreachable!("the statement returns one row") };
        if !row.flag() {
            // PostgreSQL refuses the name too, so that the transaction cannot be committed without its event.
            let refused = transaction.execute("SELECT $1::text::regclass", &[Argument::Text(&table)]).await;
            let missing = || PostgresError::detected("42P01", &format!("relation {table} does not exist"));
            let source = refused.err().unwrap_or_else(missing);
            return Err(Error::NoOutbox { table, source });
        }
        let payload = match row.text().as_deref() {
            Some("json" | "jsonb") => Payload::Json,
            Some("bytea") => Payload::Bytea,
            other => {
                let column_type = other.unwrap_or("unknown").to_owned();
                return Err(Error::UnsupportedPayload { table, column_type });
            }
        };
        self.payload.store(payload as u8, Ordering::Relaxed);
        Ok(payload)
    }

    async fn insert_one(
        &self,
        transaction: &mut impl OutboxTransaction,
        payload: Payload,
        event: &Event,
    ) -> Result<u64, PostgresError> {
        let sql = format!(
            "INSERT INTO {} (event_id, aggregate_type, aggregate_id, event_type, headers, payload)
             VALUES ($1::text::uuid, $2, $3, $4, nullif($5, '')::jsonb, {})",
            self.table,
            payload.converted(&self.table, "$6::bytea")
        );
        let (event_id, headers) = (event.id.to_string(), headers(event));
        let arguments = [
            Argument::Text(&event_id),
            Argument::Text(&event.aggregate_type),
            Argument::Text(&event.aggregate_id),
            Argument::Text(&event.event_type),
            Argument::Text(&headers),
            Argument::Bytes(event.payload.0.as_deref()),
        ];
        transaction.execute(&sql, &arguments).await
    }

    /// The statement sorts by position in the arrays. Identity values are assigned after the sort, so they have the order of the input.
    async fn insert_many(
        &self,
        transaction: &mut impl OutboxTransaction,
        payload: Payload,
        events: &[Event],
    ) -> Result<u64, PostgresError> {
        let sql = format!(
            "INSERT INTO {} (event_id, aggregate_type, aggregate_id, event_type, headers, payload)
             SELECT e.event_id::uuid, e.aggregate_type, e.aggregate_id, e.event_type, nullif(e.headers, '')::jsonb,
                    CASE WHEN e.has_payload THEN {} END
             FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bool[], $7::bytea[])
                  WITH ORDINALITY
                  AS e (event_id, aggregate_type, aggregate_id, event_type, headers, has_payload, payload, position)
             ORDER BY e.position",
            self.table,
            payload.converted(&self.table, "e.payload")
        );
        let event_ids: Vec<String> = events.iter().map(|event| event.id.to_string()).collect();
        let headers: Vec<String> = events.iter().map(headers).collect();
        let texts = |of: fn(&Event) -> &str| -> Vec<&str> { events.iter().map(of).collect() };
        let payloads = events.iter().map(|event| event.payload.0.as_deref());
        let has_payload: Vec<bool> = payloads.clone().map(|payload| payload.is_some()).collect();
        let payloads: Vec<&[u8]> = payloads.map(Option::unwrap_or_default).collect();
        let arguments = [
            Argument::Texts(&event_ids.iter().map(String::as_str).collect::<Vec<_>>()),
            Argument::Texts(&texts(|event| &event.aggregate_type)),
            Argument::Texts(&texts(|event| &event.aggregate_id)),
            Argument::Texts(&texts(|event| &event.event_type)),
            Argument::Texts(&headers.iter().map(String::as_str).collect::<Vec<_>>()),
            Argument::Flags(&has_payload),
            Argument::ByteStrings(&payloads),
        ];
        transaction.execute(&sql, &arguments).await
    }

    fn failure(&self, source: PostgresError) -> Error {
        let table = self.table.to_string();
        match source.sqlstate() {
            // Undefined table, or undefined schema.
            Some("42P01" | "3F000") => Error::NoOutbox { table, source },
            Some("25P01") => Error::NoTransaction { source },
            _ => Error::Postgres { table, source },
        }
    }
}

impl Payload {
    fn converted(self, table: &TableName, bytes: &str) -> String {
        match self {
            Payload::Json => format!("convert_from({bytes}, 'UTF8')::json"),
            // PostgreSQL assigns bytea to a text column as hexadecimal digits. The NULL has the type of the column, so the
            // statement fails with 42804 or 42846 once that is another one.
            Payload::Bytea => format!("coalesce({bytes}, (NULL::{table}).payload)"),
        }
    }
}

/// Without headers, the text is empty and the column is NULL, as in a row that was inserted manually.
fn headers(event: &Event) -> String {
    if event.headers.is_empty() {
        return String::new();
    }
    serde_json::to_string(&event.headers).expect("a map from strings is JSON")
}
