//! The type of the payload column, in SQL and on the wire.

use std::fmt;
use std::str::FromStr;
use tokio_postgres::types::Type;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadType {
    /// JSON text as the application wrote it.
    Json,
    /// JSON as normalized by PostgreSQL. The binary format starts with a version byte.
    Jsonb,
    Bytea,
    Text,
}

impl PayloadType {
    /// The name of the type in SQL.
    fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Jsonb => "jsonb",
            Self::Bytea => "bytea",
            Self::Text => "text",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        [Self::Json, Self::Jsonb, Self::Bytea, Self::Text].into_iter().find(|known| known.name() == name)
    }

    /// The payload type for this column of a result.
    pub(crate) fn of(column: &Type) -> Option<PayloadType> {
        match *column {
            Type::JSON => Some(PayloadType::Json),
            Type::JSONB => Some(PayloadType::Jsonb),
            Type::BYTEA => Some(PayloadType::Bytea),
            Type::TEXT => Some(PayloadType::Text),
            _ => None,
        }
    }

    /// The cast of a payload to a type whose length the server knows. Except for jsonb, it does not read the value: the cast of
    /// json to text is binary-compatible.
    pub(crate) fn as_text(self) -> &'static str {
        match self {
            PayloadType::Bytea => "",
            PayloadType::Json | PayloadType::Jsonb | PayloadType::Text => "::text",
        }
    }

    /// SQL for the length of a payload in bytes.
    pub(crate) fn length_sql(self, column: &str) -> String {
        format!("octet_length({column}{})", self.as_text())
    }

    /// SQL for a payload as bytes.
    pub(crate) fn bytes_sql(self, column: &str) -> String {
        match self {
            PayloadType::Bytea => column.to_owned(),
            PayloadType::Json | PayloadType::Jsonb | PayloadType::Text => {
                format!("convert_to({column}::text, 'UTF8')")
            }
        }
    }

    /// SQL that converts the result of [`PayloadType::bytes_sql`] back to a payload.
    pub(crate) fn decode_sql(self, bytes: &str) -> String {
        match self {
            PayloadType::Bytea => bytes.to_owned(),
            PayloadType::Text => format!("convert_from({bytes}, 'UTF8')"),
            PayloadType::Json => format!("convert_from({bytes}, 'UTF8')::json"),
            PayloadType::Jsonb => format!("convert_from({bytes}, 'UTF8')::jsonb"),
        }
    }
}

impl fmt::Display for PayloadType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PayloadType {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::from_name(name).ok_or("use json, jsonb, text or bytea")
    }
}
