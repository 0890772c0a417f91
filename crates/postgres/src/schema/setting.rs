//! The settings that a relay records when it starts, so that applications and `doctor` can compare theirs.
//!
//! There is one row per outbox. If relays disagree, the last one to record its settings wins, and reports what it replaces.

use std::fmt;
use std::net::IpAddr;
use std::time::SystemTime;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::connection::connect::Database;
use crate::connection::transaction::{Params, ShortTransaction};
use crate::table::TableName;
use relay::failure::{FaultKind, PostgresFault};

const READING: &str = "reading the recorded topic template";
const RECORDING: &str = "recording the topic template";

/// Each relay that starts at the same time with another template can make one attempt of this relay fail.
const ATTEMPTS: usize = 10;

const READ: &str = "
SELECT topic_template, recorded_at, role, application, address
FROM {setting}";

/// Replaces only the template that was read, so that of two relays that start at the same time, the second one reads what the
/// first one has recorded. Returns a row if it has recorded the template.
const RECORD: &str = "
INSERT INTO {setting} AS recorded (topic_template) VALUES ($1::text)
ON CONFLICT (singleton) DO UPDATE
SET topic_template = excluded.topic_template, recorded_at = excluded.recorded_at, role = excluded.role,
    application = excluded.application, address = excluded.address
WHERE recorded.topic_template = $2::text
RETURNING true";

/// The recorded topic template, and the relay that recorded it. Displays both.
#[derive(Debug)]
pub struct Recorded {
    pub(crate) topic_template: String,
    at: SystemTime,
    role: String,
    application: String,
    address: Option<IpAddr>,
}

/// Reads it; `None` if no relay has recorded its template.
pub(crate) async fn read(
    transaction: &ShortTransaction,
    table: &TableName,
) -> Result<Option<Recorded>, PostgresFault> {
    let rows = transaction.query(READING, &table.render(READ), &[]).await?;
    Ok(rows.first().map(Recorded::from))
}

/// Records this template. Returns the former one if it was different. Changes nothing, and needs no privilege to write, if the
/// same template is recorded.
pub async fn record(
    database: &Database,
    table: &TableName,
    topic_template: &str,
) -> Result<Option<Recorded>, PostgresFault> {
    let transaction = ShortTransaction::recording(database.clone());
    let record = table.render(RECORD);
    for _ in 0..ATTEMPTS {
        let former = read(&transaction, table).await?;
        let replaced = former.as_ref().map(|former| former.topic_template.as_str());
        if replaced == Some(topic_template) {
            return Ok(None);
        }
        let params: Params<'_> = &[(&topic_template, Type::TEXT), (&replaced, Type::TEXT)];
        if !transaction.query(RECORDING, &record, params).await?.is_empty() {
            return Ok(former);
        }
    }
    let message = format!("the recorded template has changed during each of {ATTEMPTS} attempts");
    Err(PostgresFault { kind: FaultKind::Contended, doing: RECORDING, message })
}

impl From<&Row> for Recorded {
    fn from(row: &Row) -> Recorded {
        Recorded {
            topic_template: row.get(0),
            at: row.get(1),
            role: row.get(2),
            application: row.get(3),
            address: row.get(4),
        }
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Recorded { topic_template, at, role, application, address } = self;
        let at = humantime::format_rfc3339_seconds(*at);
        write!(f, "{topic_template}, recorded at {at} by role {role} (application {application:?}")?;
        match address {
            Some(address) => write!(f, ", address {address})"),
            None => f.write_str(")"),
        }
    }
}
