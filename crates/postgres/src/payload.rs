//! SQL and wire types for each type that the payload column may have.

pub use crate::schema::check::PayloadType;
use tokio_postgres::types::Type;

impl PayloadType {
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

    /// SQL for the length of a payload in bytes. Except for jsonb, the server does not read the value: the cast of json to
    /// text is binary-compatible.
    pub(crate) fn length_sql(self, column: &str) -> String {
        match self {
            PayloadType::Bytea => format!("octet_length({column})"),
            PayloadType::Json | PayloadType::Jsonb | PayloadType::Text => {
                format!("octet_length({column}::text)")
            }
        }
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
