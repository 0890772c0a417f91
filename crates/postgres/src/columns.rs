//! The columns of the outbox: `[outbox.columns]`, their names in an existing table, and the type of the payload.

use crate::table::IDENTIFIER_BYTES_MAX;
use settings::choice;
use settings::file::{Entry, nearest};
use settings::findings::Problem;
use settings::reader::{Raw, Reader};
use settings::setting::Table;
use std::collections::BTreeMap;
use std::str::FromStr;
use tokio_postgres::types::Type;

pub static COLUMNS: Table = Table {
    section: "outbox.columns",
    example: "{ aggregate_id = \"ref\" }",
    lines: "#aggregate_id = \"ref\"\n#sent_at = \"published_at\"\n",
    key_of_variable: |name| name.to_lowercase(),
    what: "",
    is_known: |_| false,
    is_harmless: |_| false,
};

/// A JSON path that finds a header that is neither a string nor base64, in which white space is ignored. It is strict, because
/// the lax mode takes an array for its members.
pub(crate) const BAD_HEADER: &str = r#"strict $.* ? (@.type() <> "string" && !(@.type() == "object"
    && exists(@.keyvalue() ? (@.key == "base64" && @.value.type() == "string" && @.value
        like_regex "^\\s*(([A-Za-z0-9+/]\\s*){4})*(([A-Za-z0-9+/]\\s*){2}(=\\s*){2}|([A-Za-z0-9+/]\\s*){3}=\\s*)?$"))
    && !exists(@.keyvalue() ? (@.key <> "base64"))))"#;

choice! {
    /// A column, by its standard name, which is also the key in `[outbox.columns]`. They are in the order of the table that
    /// `migrate` creates.
    #[derive(PartialOrd, Ord, Hash)]
    Column {
        /// The order within a key.
        Id = "id",
        EventId = "event_id",
        /// Determines the topic.
        AggregateType = "aggregate_type",
        /// The Kafka key.
        AggregateId = "aggregate_id",
        EventType = "event_type",
        /// The value of the record.
        Payload = "payload",
        Headers = "headers",
        CreatedAt = "created_at",
        SentAt = "sent_at",
        /// The topic that the event names. The column is optional.
        Topic = "topic",
    }
}

/// The names of the columns of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Columns(BTreeMap<Column, String>);

impl Columns {
    /// These names, and the standard ones for all other columns. The names must be different, as in a valid configuration.
    pub fn new(names: impl IntoIterator<Item = (Column, String)>) -> Columns {
        Columns(names.into_iter().filter(|(column, name)| column.name() != name).collect())
    }

    /// The name of a column, unquoted.
    pub fn name(&self, column: Column) -> &str {
        self.0.get(&column).map_or(column.name(), String::as_str)
    }

    /// The name of the optional column `topic`, unless another column has the name.
    pub fn topic(&self) -> Option<&str> {
        let name = self.name(Column::Topic);
        let is_taken = self.0.iter().any(|(column, other)| *column != Column::Topic && other == name);
        (!is_taken).then_some(name)
    }

    pub(crate) fn is_renamed(&self, column: Column) -> bool {
        self.0.contains_key(&column)
    }

    pub fn are_standard(&self) -> bool {
        self.0.is_empty()
    }

    pub fn renamed(&self) -> impl Iterator<Item = (Column, &str)> {
        self.0.iter().map(|(column, name)| (*column, name.as_str()))
    }

    /// Reads `[outbox.columns]`. Invalid names become findings.
    pub fn from(reader: &mut Reader) -> Columns {
        let mut names: BTreeMap<Column, String> = BTreeMap::new();
        let entries = reader.entries.table(COLUMNS.section);
        for (key, entry) in &entries {
            match read(key, entry) {
                Ok((column, name)) => _ = names.insert(column, name),
                Err(problem) => reader.findings.error(&entry.place, problem),
            }
        }
        let columns = Columns::new(names.clone());
        for (column, name) in &names {
            let twin = Column::ALL.into_iter().find(|other| columns.has_same_name(*column, *other));
            let is_first = twin.is_none_or(|twin| names.contains_key(&twin) && twin > *column);
            if let (Some(twin), false, Some(entry)) = (twin, is_first, entries.get(column.name())) {
                let message = format!("[outbox.columns] {column} and {twin} both name the column {name:?}");
                let help = match names.contains_key(&twin) {
                    true => "each needs a column of its own".to_owned(),
                    false => format!("also set {twin}, whose standard name is {twin}"),
                };
                reader.findings.error(&entry.place, Problem::new(message, help));
            }
        }
        columns
    }

    /// The optional column `topic` gives way to another column, unless it has been given the name.
    fn has_same_name(&self, column: Column, other: Column) -> bool {
        column != other
            && self.name(column) == self.name(other)
            && (other != Column::Topic || self.is_renamed(Column::Topic))
    }
}

fn read(key: &str, entry: &Entry) -> Result<(Column, String), Problem> {
    let Some(column) = Column::named(key) else {
        let help = match nearest(key, Column::WORDS.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the columns are {}", Column::WORDS.join(", ")),
        };
        let message = format!("unknown column `{}` in [outbox.columns]", key.escape_debug());
        return Err(Problem::new(message, help));
    };
    let invalid = |what: &str, help: &str| Problem::new(format!("[outbox.columns] {column} {what}"), help);
    let (Raw::Variable(name) | Raw::String(name)) = &entry.raw else {
        return Err(invalid("must be a string", "for example \"published_at\""));
    };
    if name.is_empty() {
        return Err(invalid("is empty", "set it to the name of the column in the table, or remove it"));
    }
    if name.len() > IDENTIFIER_BYTES_MAX {
        let what = format!("has {} bytes, but the maximum is {IDENTIFIER_BYTES_MAX}", name.len());
        return Err(invalid(&what, "PostgreSQL shortens longer names: see the table's definition"));
    }
    // A line break would end an SQL comment, and `$$` the body of a function.
    if name.contains(char::is_control) || name.contains("$$") {
        return Err(invalid("contains a control character or `$$`", "rename the column"));
    }
    Ok((column, name.clone()))
}

choice! {
    /// By its name in SQL.
    PayloadType {
        /// JSON text as the application wrote it.
        Json = "json",
        /// JSON as normalized by PostgreSQL. The binary format starts with a version byte.
        Jsonb = "jsonb",
        Bytea = "bytea",
        Text = "text",
    }
}

impl PayloadType {
    /// The payload type for this column of a result.
    pub(crate) fn of(column: &Type) -> Option<PayloadType> {
        PayloadType::named(column.name()).filter(|_| column.schema() == "pg_catalog")
    }

    /// SQL for the length of a payload in bytes. The server knows it without reading a large value, except for jsonb, and for json
    /// that is compressed: a cast of either to text reads it. The length of json includes its header of up to 4 bytes.
    pub(crate) fn length_sql(self, column: &str) -> String {
        match self {
            PayloadType::Bytea | PayloadType::Text => format!("octet_length({column})"),
            PayloadType::Jsonb => format!("octet_length({column}::text)"),
            PayloadType::Json => format!(
                "CASE WHEN pg_column_compression({column}) IS NULL THEN pg_column_size({column}) \
                 ELSE octet_length({column}::text) END"
            ),
        }
    }

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
            PayloadType::Json | PayloadType::Jsonb => format!("convert_from({bytes}, 'UTF8')::{self}"),
        }
    }
}

impl FromStr for PayloadType {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::named(name).ok_or("use json, jsonb, text or bytea")
    }
}
