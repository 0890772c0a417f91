//! What a relay records when it starts, in one row per outbox: its topic template, so that applications and `doctor` can compare
//! theirs, and which PostgreSQL cluster and which Kafka cluster the outbox belongs to.
//!
//! If relays disagree about the template, the last one to record its own wins, and reports what it replaces. The first relay
//! records the clusters. An upgraded cluster, and a dump or a logical replica in another cluster, have another system identifier. A
//! standby, a physical copy and every other database of the same cluster have the same one.

use crate::connection::errors::{answer, unavailable};
use crate::connection::exec::{ShortTransaction, examine};
use crate::connection::pool::Database;
use crate::sql::{Script, sql};
use crate::table::TableName;
use relay::failure::{FaultKind, PostgresFault};
use settings::text::{in_line, time};
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};
use tokio::time::timeout;
use tokio_postgres::Client;

/// Claims wait for the comparison of a new connection.
const COMPARED_WITHIN: Duration = Duration::from_secs(5);

/// The row as JSON, so that a table without the columns is read too.
const READ: &str = "
SELECT (s.setting ->> 'system_identifier')::bigint, s.setting ->> 'kafka_cluster_id'
FROM (SELECT to_jsonb(t) AS setting FROM {setting} AS t) AS s";

const SYSTEM: &str = "SELECT system_identifier FROM pg_control_system()";

/// A PostgreSQL cluster and a Kafka cluster. `None` is unknown, or not recorded yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// `system_identifier` of `pg_control_system()`.
    pub system: Option<i64>,
    /// The ID that the brokers report.
    pub kafka: Option<String>,
}

from_row!(Identity: system, kafka);

/// One cluster is not the recorded one. Displays both.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Mismatch {
    /// The option of `outbox-relay confirm` for it.
    pub option: &'static str,
    text: String,
}

impl Identity {
    /// Compares what is known in both.
    pub fn mismatches(&self, found: &Identity) -> Vec<Mismatch> {
        let system = |of: &Identity| of.system.map(|system| system.to_string());
        let mismatch = |option, id: &str, recorded: Option<String>, found: Option<String>| {
            let (recorded, found) = recorded.zip(found).filter(|(recorded, found)| recorded != found)?;
            let (found, recorded) = (in_line(&found, 100), in_line(&recorded, 100));
            let text = format!("this is another {id} is {found}, and the outbox belongs to {recorded}");
            Some(Mismatch { option, text })
        };
        let postgres = "PostgreSQL cluster: its system identifier";
        let mismatches = [
            mismatch("--database", postgres, system(self), system(found)),
            mismatch("--kafka", "Kafka cluster: its ID", self.kafka.clone(), found.kafka.clone()),
        ];
        mismatches.into_iter().flatten().collect()
    }

    /// Whether this has something that `recorded` lacks.
    fn adds_to(&self, recorded: &Identity) -> bool {
        self.system.is_some() && recorded.system.is_none() || self.kafka.is_some() && recorded.kafka.is_none()
    }
}

/// What is recorded; nothing if no relay has started, or before the migration that adds it.
pub async fn recorded(transaction: &ShortTransaction, table: &TableName) -> Result<Identity, PostgresFault> {
    let rows = transaction.query("reading the recorded clusters", &table.render(READ), &[]).await?;
    Ok(rows.first().map(Identity::from).unwrap_or_default())
}

/// Whether this connection leads to the cluster that is recorded, as far as the server shows both.
pub(crate) async fn is_recorded(client: &Client, table: &TableName) -> Result<bool, PostgresFault> {
    const DOING: &str = "comparing the PostgreSQL cluster";
    let sql =
        format!("{} WHERE (s.setting ->> 'system_identifier')::bigint <> ({SYSTEM})", table.render(READ));
    let compared = timeout(COMPARED_WITHIN, answer(DOING, examine(client, client.query_typed(&sql, &[]))));
    let late = || unavailable(DOING, format!("no response within {COMPARED_WITHIN:?}"));
    match compared.await.unwrap_or_else(|_| Err(late())) {
        Ok(differing) => Ok(differing.is_empty()),
        // Without the privileges, nothing can be compared. The log says so.
        Err(fault) if matches!(fault.kind, FaultKind::Refused | FaultKind::Data) => Ok(true),
        Err(fault) => Err(fault),
    }
}

/// The system identifier of the connected cluster; `None` if the server does not show it.
pub async fn system(database: &Database) -> Result<Option<i64>, PostgresFault> {
    let transaction = ShortTransaction::reading(database.clone());
    match transaction.query("reading the system identifier", SYSTEM, &[]).await {
        Ok(rows) => Ok(rows.first().map(|row| row.get(0))),
        Err(fault) if fault.kind == FaultKind::Refused => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Records what `recorded` lacks. Returns what is recorded then, perhaps by another relay. Writes nothing if nothing is missing.
pub async fn record(
    database: &Database,
    table: &TableName,
    recorded: &Identity,
    found: &Identity,
) -> Result<Identity, PostgresFault> {
    if !found.adds_to(recorded) {
        return Ok(recorded.clone());
    }
    write(database, table, sql!("record/clusters"), found).await?;
    self::recorded(&ShortTransaction::recording(database.clone()), table).await
}

/// Replaces what is recorded with what is known in `found`. Returns false if no relay has recorded its settings yet.
pub async fn confirm(
    database: &Database,
    table: &TableName,
    found: &Identity,
) -> Result<bool, PostgresFault> {
    write(database, table, sql!("record/confirm"), found).await
}

async fn write(
    database: &Database,
    table: &TableName,
    file: &'static str,
    found: &Identity,
) -> Result<bool, PostgresFault> {
    let params = params![found.system => INT8, found.kafka => TEXT];
    let transaction = ShortTransaction::recording(database.clone());
    let sql = Script::new(file, table).render();
    Ok(!transaction.query("recording the clusters", &sql, &params).await?.is_empty())
}

const RECORDING_TEMPLATE: &str = "recording the topic template";

/// Each relay that starts at the same time with another template can make one attempt of this relay fail.
const ATTEMPTS: usize = 10;

const READ_TEMPLATE: &str = "
SELECT topic_template, recorded_at, role, application, address
FROM {setting}";

/// The recorded topic template, and the relay that recorded it. Displays both.
#[derive(Debug)]
pub struct Recorded {
    pub(crate) topic_template: String,
    at: SystemTime,
    role: String,
    application: String,
    address: Option<IpAddr>,
}

from_row!(Recorded: topic_template, at, role, application, address);

/// The recorded template; `None` if no relay has recorded its template.
pub(crate) async fn template(
    transaction: &ShortTransaction,
    table: &TableName,
) -> Result<Option<Recorded>, PostgresFault> {
    let sql = table.render(READ_TEMPLATE);
    let rows = transaction.query("reading the recorded topic template", &sql, &[]).await?;
    Ok(rows.first().map(Recorded::from))
}

/// Records this template. Returns the former one if it was different. Changes nothing, and needs no privilege to write, if the
/// same template is recorded.
pub async fn record_template(
    database: &Database,
    table: &TableName,
    topic_template: &str,
) -> Result<Option<Recorded>, PostgresFault> {
    let transaction = ShortTransaction::recording(database.clone());
    let record = Script::new(sql!("record/template"), table).render();
    for _ in 0..ATTEMPTS {
        let former = template(&transaction, table).await?;
        let replaced = former.as_ref().map(|former| former.topic_template.as_str());
        if replaced == Some(topic_template) {
            return Ok(None);
        }
        let params = params![topic_template => TEXT, replaced => TEXT];
        if !transaction.query(RECORDING_TEMPLATE, &record, &params).await?.is_empty() {
            return Ok(former);
        }
    }
    let message = format!("the recorded template has changed during each of {ATTEMPTS} attempts");
    Err(PostgresFault { kind: FaultKind::Contended, doing: RECORDING_TEMPLATE, message })
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Recorded { topic_template, at, role, application, address } = self;
        let at = time(*at);
        let address = address.map(|address| format!(", address {address}")).unwrap_or_default();
        write!(f, "{topic_template}, recorded at {at} by role {role} (application {application:?}{address})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_clusters_match_any_other() {
        let known = |system, kafka: Option<&str>| Identity { system, kafka: kafka.map(str::to_owned) };
        let recorded = known(Some(1), Some("a"));
        assert_eq!(recorded.mismatches(&known(Some(1), Some("a"))), []);
        assert_eq!(recorded.mismatches(&known(None, None)), []);
        assert_eq!(known(None, None).mismatches(&recorded), []);
        let differ: Vec<_> =
            recorded.mismatches(&known(Some(2), Some("b"))).iter().map(|mismatch| mismatch.option).collect();
        assert_eq!(differ, ["--database", "--kafka"]);
        assert!(recorded.adds_to(&known(Some(1), None)) && !recorded.adds_to(&recorded));
    }
}
