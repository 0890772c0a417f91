//! How the payload column's type, which the check at start detects, is read.

pub use crate::postgres::schema::check::PayloadType;
use tokio_postgres::types::Type;

impl PayloadType {
    /// The one that a column of a result has.
    pub(crate) fn of(column: &Type) -> Option<PayloadType> {
        match *column {
            Type::JSON => Some(PayloadType::Json),
            Type::JSONB => Some(PayloadType::Jsonb),
            Type::BYTEA => Some(PayloadType::Bytea),
            Type::TEXT => Some(PayloadType::Text),
            _ => None,
        }
    }

    /// The length of a payload in bytes, in SQL. For all but jsonb it is known without reading the value: the cast of
    /// json to text is binary-compatible and parses nothing.
    pub(crate) fn length_sql(self, column: &str) -> String {
        match self {
            PayloadType::Bytea => format!("octet_length({column})"),
            PayloadType::Json | PayloadType::Jsonb | PayloadType::Text => {
                format!("octet_length({column}::text)")
            }
        }
    }

    /// The payload as bytes, in SQL.
    pub(crate) fn bytes_sql(self, column: &str) -> String {
        match self {
            PayloadType::Bytea => column.to_owned(),
            PayloadType::Json | PayloadType::Jsonb | PayloadType::Text => {
                format!("convert_to({column}::text, 'UTF8')")
            }
        }
    }

    /// The payload out of its bytes again, in SQL: what [`PayloadType::bytes_sql`] has made of it.
    pub(crate) fn sql_of_bytes(self, bytes: &str) -> String {
        match self {
            PayloadType::Bytea => bytes.to_owned(),
            PayloadType::Text => format!("convert_from({bytes}, 'UTF8')"),
            PayloadType::Json => format!("convert_from({bytes}, 'UTF8')::json"),
            PayloadType::Jsonb => format!("convert_from({bytes}, 'UTF8')::jsonb"),
        }
    }
}
