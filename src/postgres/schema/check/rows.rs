//! Checks the two tables whose rows are part of the schema, and the triggers that update one of them.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::fault::{SchemaFault, SchemaFaultKind};
use crate::postgres::table::TableName;

/// Part of the schema and not of the configuration, so that replicas cannot disagree.
const LANES: i32 = 64;

/// Limited, in case the table has many wrong rows.
const READ_LANES: &str = "SELECT lane::integer FROM {lane} ORDER BY lane LIMIT 1000";

pub(super) async fn lane_faults(
    client: &Client,
    table: &TableName,
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let rows = client.query_typed(&table.render(READ_LANES), &[]).await?;
    let lanes: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    let missing: Vec<i32> = (0..LANES).filter(|lane| !lanes.contains(lane)).collect();
    let place = table.lane();
    let mut faults = Vec::new();
    if !missing.is_empty() {
        faults.push(SchemaFault::new(
            SchemaFaultKind::Lanes,
            &place,
            format!(
                "the table has only {} of the {LANES} lanes, so events of a missing lane would never be sent",
                LANES as usize - missing.len()
            ),
            format!("INSERT INTO {place} SELECT generate_series(0, {}) ON CONFLICT DO NOTHING;", LANES - 1),
        ));
    }
    let surplus = lanes.len() + missing.len() - LANES as usize;
    if surplus > 0 {
        faults.push(SchemaFault::new(
            SchemaFaultKind::Lanes,
            &place,
            format!("rows that are not lanes from 0 to {}: {surplus}", LANES - 1),
            format!("DELETE FROM {place} WHERE lane NOT BETWEEN 0 AND {};", LANES - 1),
        ));
    }
    Ok(faults)
}

const COUNT_VERSIONS: &str = "SELECT count(*) FROM (SELECT FROM {hold_version} LIMIT 2) AS versions";

pub(super) async fn hold_version_faults(
    client: &Client,
    table: &TableName,
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let count: i64 = client.query_typed_one(&table.render(COUNT_VERSIONS), &[]).await?.get(0);
    if count == 1 {
        return Ok(Vec::new());
    }
    let place = table.hold_version();
    let remedy =
        format!("stop all relays, then run: DELETE FROM {place}; INSERT INTO {place} DEFAULT VALUES;");
    let problem = format!(
        "the table must have exactly one row, but has {}",
        if count == 0 { "none" } else { "several" }
    );
    Ok(vec![SchemaFault::new(SchemaFaultKind::Holds, &place, problem, remedy)])
}

/// Triggers that are enabled as `O` or `A` fire in ordinary sessions.
const TRIGGER: &str = "
SELECT 1 FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE t.tgrelid = $1 AND t.tgenabled IN ('O', 'A') AND p.proname = $2";

pub(super) async fn trigger_faults(
    client: &Client,
    table: &TableName,
    counted: &str,
    relation: u32,
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let function = table.name_of("{hold_changed}");
    let rows = client.query_typed(TRIGGER, &[(&relation, Type::OID), (&function, Type::TEXT)]).await?;
    if !rows.is_empty() {
        return Ok(Vec::new());
    }
    let place = table.render(counted);
    let remedy = format!(
        "ALTER TABLE {place} ENABLE TRIGGER hold_changed; or recreate it as shown by `outbox-relay migrate --print \
         --config FILE`"
    );
    let problem =
        "the trigger hold_changed is missing or disabled, so the end of a hold or block could reorder events";
    Ok(vec![SchemaFault::new(SchemaFaultKind::Holds, place, problem, remedy)])
}
