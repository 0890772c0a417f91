//! Checks the two tables whose rows are part of the schema, and the triggers that update one of them.

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::MIGRATE;
use super::fault::{SchemaFault, SchemaFaultKind};
use crate::access::grants::Privilege;
use crate::table::TableName;

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

/// What a command changes, and the trigger that records it.
const ACTS: [(&str, &str, &str); 5] = [
    ("INSERT", "{pause}", "pause_recorded"),
    ("DELETE", "{pause}", "resume_recorded"),
    ("UPDATE", "{dead_letter}", "requeue_recorded"),
    ("DELETE", "{dead_letter}", "discard_recorded"),
    ("DELETE", "{blocked_key}", "unblock_recorded"),
];

/// The triggers that do not exist or do not fire in ordinary sessions, and the function that records replays if it is needed and
/// does not exist.
const UNRECORDED: &str = "
SELECT $5::text, NULL
WHERE $6::boolean AND NOT EXISTS (
    SELECT FROM pg_proc AS p JOIN pg_namespace AS s ON s.oid = p.pronamespace WHERE s.nspname = $1 AND p.proname = $5)
UNION ALL
SELECT a.relation, a.trigger
FROM unnest($2::text[], $3::text[]) AS a (relation, trigger)
WHERE NOT EXISTS (
    SELECT FROM pg_trigger AS t
    JOIN pg_class AS c ON c.oid = t.tgrelid JOIN pg_namespace AS s ON s.oid = c.relnamespace
    JOIN pg_proc AS p ON p.oid = t.tgfoid
    WHERE s.nspname = $1 AND c.relname = a.relation AND t.tgname = a.trigger AND t.tgenabled IN ('O', 'A')
      AND p.proname = $4)";

/// A command with these privileges must not act if its act would not be recorded.
pub(super) async fn act_faults(
    client: &Client,
    table: &TableName,
    privileges: &[Privilege],
) -> Result<Vec<SchemaFault>, tokio_postgres::Error> {
    let acts = |(kind, on, _): &&(&str, &str, &str)| {
        privileges.iter().any(|privilege| privilege.kind == *kind && privilege.on == *on)
    };
    let wanted: Vec<_> = ACTS.iter().filter(acts).collect();
    let relations: Vec<String> = wanted.iter().map(|(_, on, _)| table.name_of(on)).collect();
    let triggers: Vec<&str> = wanted.iter().map(|(_, _, trigger)| *trigger).collect();
    let replays = privileges.iter().any(|privilege| privilege.on == "{record_act}");
    let [function, of_replays] = ["{act_recorded}", "{record_act}"].map(|name| table.name_of(name));
    let schema = table.schema();
    let params: [(&(dyn ToSql + Sync), Type); 6] = [
        (&schema, Type::TEXT),
        (&relations, Type::TEXT_ARRAY),
        (&triggers, Type::TEXT_ARRAY),
        (&function, Type::TEXT),
        (&of_replays, Type::TEXT),
        (&replays, Type::BOOL),
    ];
    let rows = client.query_typed(UNRECORDED, &params).await?;
    let fault = |row: &tokio_postgres::Row| {
        let (name, trigger): (&str, Option<&str>) = (row.get(0), row.get(1));
        let place = table.sibling(name);
        let (what, enable) = match trigger {
            Some(trigger) => {
                let enable = format!(", or: ALTER TABLE {place} ENABLE TRIGGER {trigger};");
                (format!("the trigger {trigger} is missing or disabled"), enable)
            }
            None => ("the function is missing".to_owned(), String::new()),
        };
        let (problem, remedy) =
            (format!("{what}, so the act would not be recorded"), format!("{MIGRATE}{enable}"));
        SchemaFault::new(SchemaFaultKind::Relation, place, problem, remedy)
    };
    Ok(rows.iter().map(fault).collect())
}

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
