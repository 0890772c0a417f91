use std::sync::atomic::{AtomicU8, Ordering};

#[cfg(any(feature = "_sqlx", feature = "_diesel"))]
use crate::driver::PlainStatements;
use crate::error::Error;
use crate::table::TableName;

/// The statements that insert into one outbox table, and the type of its payload column.
#[derive(Debug)]
pub struct Insert {
    name: TableName,
    table: String,
    one: String,
    many_json: String,
    many_bytea: String,
    #[cfg(any(feature = "_sqlx", feature = "_diesel"))]
    plain: PlainStatements,
    payload: AtomicU8,
}

/// The type of the payload parameter.
///
/// For a jsonb column, the parameter is json, and PostgreSQL applies its assignment cast. With a jsonb parameter, an insert
/// into a json column would silently rewrite the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadKind {
    /// The column is json or jsonb.
    Json,
    /// The column is bytea.
    Bytea,
}

const UNKNOWN: u8 = 0;
const JSON: u8 = 1;
const BYTEA: u8 = 2;

impl Insert {
    pub fn new(table: &TableName) -> Insert {
        Insert {
            name: table.clone(),
            table: table.to_string(),
            one: insert_one(table),
            many_json: insert_many(table, "json"),
            many_bytea: insert_many(table, "bytea"),
            #[cfg(any(feature = "_sqlx", feature = "_diesel"))]
            plain: PlainStatements::new(table),
            payload: AtomicU8::new(UNKNOWN),
        }
    }

    pub fn name(&self) -> &TableName {
        &self.name
    }

    /// The table as in SQL.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// Inserts one event. If it is prepared without types, its payload parameter has the type of the column.
    pub fn one(&self) -> &str {
        &self.one
    }

    /// Inserts many events, as six arrays.
    pub fn many(&self, payload: PayloadKind) -> &str {
        match payload {
            PayloadKind::Json => &self.many_json,
            PayloadKind::Bytea => &self.many_bytea,
        }
    }

    /// The statements for drivers that bind only plain types.
    #[cfg(any(feature = "_sqlx", feature = "_diesel"))]
    pub fn plain(&self) -> &PlainStatements {
        &self.plain
    }

    /// The type of the payload column, if an earlier call has learned it.
    pub fn known_payload(&self) -> Option<PayloadKind> {
        match self.payload.load(Ordering::Relaxed) {
            JSON => Some(PayloadKind::Json),
            BYTEA => Some(PayloadKind::Bytea),
            _ => None,
        }
    }

    /// Remembers the type of the payload column, given by name.
    pub fn learn_payload(&self, column_type: &str) -> Result<PayloadKind, Error> {
        let kind = match column_type {
            "json" | "jsonb" => PayloadKind::Json,
            "bytea" => PayloadKind::Bytea,
            other => {
                let column_type = other.to_owned();
                return Err(Error::UnsupportedPayload { table: self.table.clone(), column_type });
            }
        };
        self.payload.store(if kind == PayloadKind::Json { JSON } else { BYTEA }, Ordering::Relaxed);
        Ok(kind)
    }

    /// Forgets the type of the payload column after it has changed.
    pub fn forget_payload(&self) {
        self.payload.store(UNKNOWN, Ordering::Relaxed);
    }
}

fn insert_one(table: &TableName) -> String {
    format!(
        "INSERT INTO {table} (event_id, aggregate_type, aggregate_id, event_type, payload, headers)
         VALUES ($1, $2, $3, $4, $5, $6)"
    )
}

/// Sorted by position in the arrays. Identity values are assigned after the sort, so they have the order of the input.
fn insert_many(table: &TableName, payload: &str) -> String {
    format!(
        "INSERT INTO {table} (event_id, aggregate_type, aggregate_id, event_type, payload, headers)
         SELECT e.event_id, e.aggregate_type, e.aggregate_id, e.event_type, e.payload, e.headers
         FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::{payload}[], $6::jsonb[])
              WITH ORDINALITY
              AS e (event_id, aggregate_type, aggregate_id, event_type, payload, headers, position)
         ORDER BY e.position"
    )
}
