//! Which PostgreSQL cluster and which Kafka cluster the outbox belongs to.
//!
//! The first relay records both next to the topic template. A dump, a logical replica or an upgraded cluster has another
//! system identifier. A standby and a physical copy have the same one.

use crate::connection::connect::Database;
use crate::connection::fault::{answer, unavailable};
use crate::connection::transaction::{Params, ShortTransaction, examine};
use crate::table::TableName;
use relay::failure::{FaultKind, PostgresFault};
use settings::text::in_line;
use std::fmt;
use std::time::Duration;
use tokio::time::timeout;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

/// Claims wait for the comparison of a new connection.
const COMPARED_WITHIN: Duration = Duration::from_secs(5);
const READING: &str = "reading the recorded clusters";
const RECORDING: &str = "recording the clusters";

/// The row as JSON, so that a table without the columns is read too.
const READ: &str = "
SELECT (s.setting ->> 'system_identifier')::bigint, s.setting ->> 'kafka_cluster_id'
FROM (SELECT to_jsonb(t) AS setting FROM {setting} AS t) AS s";

const SYSTEM: &str = "SELECT system_identifier FROM pg_control_system()";

/// Fills in what is not recorded. Of two relays that start at the same time, the second one waits for the first, and finds its
/// values. Returns no row if nothing was left to record.
const RECORD: &str = "
UPDATE {setting}
SET system_identifier = coalesce(system_identifier, $1::bigint), kafka_cluster_id = coalesce(kafka_cluster_id, $2::text),
    identified_at = now(), identified_by = session_user
WHERE (system_identifier IS NULL AND $1::bigint IS NOT NULL) OR (kafka_cluster_id IS NULL AND $2::text IS NOT NULL)
RETURNING true";

const CONFIRM: &str = "
UPDATE {setting}
SET system_identifier = coalesce($1::bigint, system_identifier), kafka_cluster_id = coalesce($2::text, kafka_cluster_id),
    identified_at = now(), identified_by = session_user
RETURNING true";

/// A PostgreSQL cluster and a Kafka cluster. `None` is unknown, or not recorded yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// `system_identifier` of `pg_control_system()`.
    pub system: Option<i64>,
    /// The ID that the brokers report.
    pub kafka: Option<String>,
}

/// One cluster is not the recorded one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    Database { recorded: i64, found: i64 },
    Kafka { recorded: String, found: String },
}

impl Identity {
    /// Compares what is known in both.
    pub fn mismatches(&self, found: &Identity) -> Vec<Mismatch> {
        let mut mismatches = Vec::new();
        if let (Some(recorded), Some(found)) = (self.system, found.system)
            && recorded != found
        {
            mismatches.push(Mismatch::Database { recorded, found });
        }
        if let (Some(recorded), Some(found)) = (&self.kafka, &found.kafka)
            && recorded != found
        {
            mismatches.push(Mismatch::Kafka { recorded: recorded.clone(), found: found.clone() });
        }
        mismatches
    }

    /// Whether this has something that `recorded` lacks.
    fn adds_to(&self, recorded: &Identity) -> bool {
        self.system.is_some() && recorded.system.is_none() || self.kafka.is_some() && recorded.kafka.is_none()
    }
}

impl Mismatch {
    /// The option of `outbox-relay confirm` for it.
    pub fn option(&self) -> &'static str {
        match self {
            Mismatch::Database { .. } => "--database",
            Mismatch::Kafka { .. } => "--kafka",
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Database { recorded, found } => write!(
                f,
                "this is another PostgreSQL cluster: its system identifier is {found}, and the outbox belongs to {recorded}"
            ),
            Mismatch::Kafka { recorded, found } => write!(
                f,
                "this is another Kafka cluster: its ID is {}, and the outbox belongs to {}",
                in_line(found, 100),
                in_line(recorded, 100)
            ),
        }
    }
}

/// What is recorded; nothing if no relay has started, or before the migration that adds it.
pub async fn recorded(transaction: &ShortTransaction, table: &TableName) -> Result<Identity, PostgresFault> {
    let rows = transaction.query(READING, &table.render(READ), &[]).await?;
    Ok(rows.first().map_or_else(Identity::default, identity))
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
    write(database, table, RECORD, found).await?;
    self::recorded(&ShortTransaction::recording(database.clone()), table).await
}

/// Replaces what is recorded with what is known in `found`. Returns false if no relay has recorded its settings yet.
pub async fn confirm(
    database: &Database,
    table: &TableName,
    found: &Identity,
) -> Result<bool, PostgresFault> {
    write(database, table, CONFIRM, found).await
}

async fn write(
    database: &Database,
    table: &TableName,
    sql: &str,
    found: &Identity,
) -> Result<bool, PostgresFault> {
    let params: Params<'_> = &[(&found.system, Type::INT8), (&found.kafka, Type::TEXT)];
    let transaction = ShortTransaction::recording(database.clone());
    Ok(!transaction.query(RECORDING, &table.render(sql), params).await?.is_empty())
}

fn identity(row: &Row) -> Identity {
    Identity { system: row.get(0), kafka: row.get(1) }
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
            recorded.mismatches(&known(Some(2), Some("b"))).iter().map(Mismatch::option).collect();
        assert_eq!(differ, ["--database", "--kafka"]);
        assert!(recorded.adds_to(&known(Some(1), None)) && !recorded.adds_to(&recorded));
    }
}
