//! The table: the checks at start, indexes and the plans that use them, triggers, constraints, vacuum.

use super::privileges::GRANT_MISSING;
use super::{Check, Context, Value};
use crate::columns::{Column, PayloadType};
use crate::connection::errors::{answer, fault, unavailable};
use crate::connection::exec::{PLAIN_NAMES, Params, begin, plain_settings};
use crate::cycle::statements::Statements;
use crate::diagnose::status::VacuumHolder;
use crate::options::OnSent;
use crate::schema::check::check;
use crate::schema::errors::{CheckError, SchemaFault, SchemaFaultKind};
use crate::sql::sql;
use crate::table::{TableName, quote_literal};
use deadpool_postgres::Object;
use relay::failure::PostgresFault;
use relay::topic::TopicRules;
use serde_json::Value as Json;
use settings::codes;
use settings::doctor::{Code, Finding};
use settings::text::{self, span};
use std::time::Duration;
use tokio::time::timeout;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Row, SimpleQueryMessage};

codes! {
    SERVER_TOO_OLD = Error, "server-too-old",
        "this version of PostgreSQL is not supported";
    STANDBY = Error, "standby",
        "the server is a standby, so the relay cannot claim or mark rows";
    ENCODING = Error, "encoding",
        "the encoding of the database is not UTF8: a single event whose text is not valid UTF-8 would make reads of other \
         events fail; the relay does not start";
    MIGRATION = Error, "migration",
        "the schema is missing or has a different version; the relay does not start, or waits for a pending migration";
    SCHEMA_NEWER = Warning, "schema-newer",
        "a newer version migrated the schema; this version can run on it";
    RELATION = Error, "relation",
        "a table is missing or not durable; the relay does not start";
    COLUMN = Error, "column",
        "a column of the outbox is missing or has the wrong type; the relay does not start";
    PENDING_INDEX = Error, "pending-index",
        "without this index, each claim would sort the whole table; the relay does not start";
    CLAIM_PLAN = Error, "claim-plan",
        "with the current statistics, the claim does not use the pending index, so it becomes slower as the table grows";
    INDEX_INVALID = Warning, "index-invalid",
        "the build of the index was interrupted; it serves no query and slows down every insert";
    INDEX_UNUSED = Note, "index-unused",
        "no query has used this index since the statistics were reset, and it slows down every insert and update";
    SEQUENCE = Error, "sequence",
        "IDs are not assigned in the order in which rows are inserted, so events of one key can be published out of order; the \
         relay does not start";
    OUTBOX_TRIGGER = Warning, "outbox-trigger",
        "if the trigger suppresses the update, the relay publishes events that it cannot record as sent, and publishes them \
         again after each restart";
    OUTBOX_CONSTRAINT = Warning, "outbox-constraint",
        "if the constraint prevents the relay from setting sent_at or from deleting a row, the relay publishes events that it \
         cannot record as sent, and publishes them again after each restart, or sent events are never deleted";
    LANES = Error, "lanes",
        "events of a missing lane would never be sent; the relay does not start";
    HOLD_COUNT = Error, "hold-count",
        "changes to holds and blocked keys are not counted, so releasing them could reorder events; the relay does not start";
    ROW_SECURITY = Error, "row-security",
        "rows may be hidden from the relay, and hidden events are never sent; the relay does not start";
    AUTOVACUUM_OFF = Warning, "autovacuum-off",
        "dead rows are never removed, so the table and its indexes grow without limit";
    WRAPAROUND = Warning, "wraparound",
        "more than a billion transactions have begun since the oldest one that vacuum has not frozen; PostgreSQL accepts no \
         writes at two billion, so applications could insert no events";
    AUTOVACUUM_LATE = Warning, "autovacuum-late",
        "vacuum starts so late that the table grows much larger than its live rows require";
    LONG_TRANSACTION = Warning, "long-transaction",
        "while this transaction is open, vacuum cannot remove rows that were sent after it began, so the table grows";
    PREPARED_TRANSACTION = Warning, "prepared-transaction",
        "a prepared transaction is still open: vacuum cannot remove rows that were sent after it began, so the table grows";
    REPLICATION_SLOT = Warning, "replication-slot",
        "the slot of a standby prevents vacuum from removing sent rows, permanently if the standby no longer exists";
}

const CHECKING: &str = "checking the schema";
const CHECKED_WITHIN: Duration = Duration::from_secs(30);

/// An index counts as unused only after this many inserts and updates.
const ROWS_MIN: i64 = 1_000;
/// The maximum number of lanes of a claim.
const CLAIM_LANES: usize = 16;
/// Vacuum must start before there are this many dead rows, or this share of the table, whichever is more.
const DEAD_ROWS_MAX: f64 = 1_000_000.0;
const DEAD_SHARE_MAX: f64 = 0.05;
/// Half of what PostgreSQL tolerates. By default, autovacuum freezes at a fifth of it.
const AGE_MAX: i32 = 1_000_000_000;
/// Holders that are older than this time or this number of transactions are findings.
const HELD_MAX: Duration = Duration::from_secs(300);
const TRANSACTIONS_MAX: i32 = 50_000;
const HOLDERS_SHOWN: i64 = 10;

/// The result of the checks at start.
pub(super) struct Schema {
    pub(super) findings: Vec<Finding>,
    pub(super) payload: PayloadType,
    pub(super) topics: TopicRules,
}

/// Runs the checks at start.
pub(super) async fn schema(context: &mut Context<'_>) -> Result<Schema, PostgresFault> {
    let connection = context.database.get().await?;
    let configured = &context.settings.topics;
    let checked = timeout(CHECKED_WITHIN, check(&connection, context.table, configured.into())).await;
    // A statement may have failed, or an answer may be outstanding.
    drop(Object::take(connection));
    let (faults, difference) = match checked {
        Ok(Ok(facts)) => (Vec::new(), facts.difference),
        Ok(Err(CheckError::Faults(faults))) => (faults, None),
        Ok(Err(CheckError::Server(error))) => return Err(unavailable(CHECKING, error.to_string())),
        Err(_) => return Err(unavailable(CHECKING, format!("no response within {CHECKED_WITHIN:?}"))),
    };
    context.faults = faults.iter().map(|fault| fault.kind).collect();
    // Not from the facts, because a schema with faults has none.
    let (table, names) = (context.table.quoted(), context.table.columns());
    let (payload, topic) = (names.name(Column::Payload), names.topic());
    let params: Params<'_> = &[(&table, Type::TEXT), (&payload, Type::TEXT), (&topic, Type::TEXT)];
    let rows = context.rows(CHECKING, sql!("doctor/columns"), params).await?;
    let columns = rows.first();
    let payload = match columns.and_then(|row| row.get(0)) {
        Some("jsonb") => PayloadType::Jsonb,
        Some("bytea") => PayloadType::Bytea,
        Some("text") => PayloadType::Text,
        _ => PayloadType::Json,
    };
    let remedy = "complete the upgrade, or leave it after a rollback";
    let newer = difference.map(|difference| SCHEMA_NEWER.found(context.outbox(), difference, remedy));
    Ok(Schema {
        findings: faults.iter().map(start_finding).chain(newer).collect(),
        payload,
        topics: configured.clone().with_column(columns.is_some_and(|row| row.get(1))),
    })
}

fn start_finding(fault: &SchemaFault) -> Finding {
    code(fault.kind).found(&fault.place, &fault.problem, &fault.remedy)
}

fn code(kind: SchemaFaultKind) -> &'static Code {
    match kind {
        SchemaFaultKind::Version => &SERVER_TOO_OLD,
        SchemaFaultKind::Standby => &STANDBY,
        SchemaFaultKind::Encoding => &ENCODING,
        SchemaFaultKind::Migration | SchemaFaultKind::Pending => &MIGRATION,
        SchemaFaultKind::Relation => &RELATION,
        SchemaFaultKind::Column => &COLUMN,
        SchemaFaultKind::Index => &PENDING_INDEX,
        SchemaFaultKind::Sequence => &SEQUENCE,
        SchemaFaultKind::Lanes => &LANES,
        SchemaFaultKind::Holds => &HOLD_COUNT,
        SchemaFaultKind::RowSecurity => &ROW_SECURITY,
        SchemaFaultKind::Grant => &GRANT_MISSING,
    }
}

/// The checks of the outbox, which exists.
pub(super) const CHECKS: [Check; 5] = [
    Check::new(
        "indexes",
        "reading the indexes",
        sql!("doctor/indexes"),
        |context| vec![context.quoted(), Value::Text(context.table.pending_index_name())],
        indexes,
    ),
    Check::new("triggers", "reading the triggers", sql!("doctor/triggers"), outbox_and_sent_at, triggers),
    Check::new(
        "constraints",
        "reading the constraints",
        sql!("doctor/constraints"),
        outbox_and_sent_at,
        constraints,
    ),
    Check::new(
        "autovacuum",
        "checking vacuum",
        sql!("doctor/autovacuum"),
        |context| vec![context.quoted()],
        autovacuum,
    ),
    Check::new(
        "what holds vacuum back",
        "checking vacuum",
        sql!("status/vacuum_holders"),
        |_| vec![Value::Number(HOLDERS_SHOWN)],
        holders,
    ),
];

fn outbox_and_sent_at(context: &Context<'_>) -> Vec<Value> {
    vec![context.quoted(), context.sent_at()]
}

/// Finds unused and invalid indexes. The checks at start verify the pending index. If it is broken, an invalid index may be the
/// pending one under another name, which is already a finding.
fn indexes(context: &Context<'_>, rows: &[Row]) -> Vec<Finding> {
    let pending_is_broken = context.faults.contains(&SchemaFaultKind::Index);
    let mut findings = Vec::new();
    for row in rows {
        let (name, valid, scans, needed): (&str, bool, i64, bool) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        let (changes, bytes): (i64, i64) = (row.get(4), row.get(5));
        let remedy = format!("DROP INDEX CONCURRENTLY {name};");
        let place = context.outbox();
        if !valid && !pending_is_broken {
            let problem = format!("the index {name} is invalid");
            findings.push(INDEX_INVALID.found(place, problem, remedy));
        } else if valid && !needed && scans == 0 && changes >= ROWS_MIN {
            let problem = format!("the index {name} ({}) was never used", text::bytes(bytes));
            findings.push(INDEX_UNUSED.found(place, problem, remedy));
        }
    }
    findings
}

/// Finds triggers that may suppress the relay's updates and deletes. The checks at start find rules.
fn triggers(context: &Context<'_>, rows: &[Row]) -> Vec<Finding> {
    let table = context.table.quoted();
    let finding = |row: &Row| {
        let name: &str = row.get(0);
        let problem = format!(
            "the trigger {name} runs before the relay's updates or deletes, and can suppress or undo them"
        );
        let remedy = format!(
            "check that it never returns NULL or OLD and keeps sent_at, or limit it to columns that the relay does not change: BEFORE UPDATE OF column. \
             To drop it: DROP TRIGGER {name} ON {table};"
        );
        OUTBOX_TRIGGER.found(context.outbox(), problem, remedy)
    };
    rows.iter().map(finding).collect()
}

/// Finds constraints that may reject the relay's updates and deletes.
fn constraints(context: &Context<'_>, rows: &[Row]) -> Vec<Finding> {
    let sent_at = context.table.columns().name(Column::SentAt);
    let marks = context.settings.on_sent == OnSent::Mark;
    let finding = |row: &Row| {
        let (name, on, is_foreign_key): (&str, &str, bool) = (row.get(0), row.get(1), row.get(2));
        let (problem, keep) = if is_foreign_key {
            (
                format!("the foreign key {name} of {on} rejects the deletion of events to which rows refer"),
                "or create it again with ON DELETE CASCADE or ON DELETE SET NULL",
            )
        } else {
            (
                format!("the constraint {name} checks {sent_at}, and can prevent the relay from setting it"),
                "or keep it if it accepts any time for every row",
            )
        };
        let remedy = format!("ALTER TABLE {on} DROP CONSTRAINT {name}; {keep}");
        OUTBOX_CONSTRAINT.found(context.outbox(), problem, remedy)
    };
    rows.iter().filter(|row| marks || row.get::<_, bool>(2)).map(finding).collect()
}

fn autovacuum(context: &Context<'_>, rows: &[Row]) -> Vec<Finding> {
    let Some(row) = rows.first() else { return Vec::new() };
    let (server, of_table): (bool, bool) = (row.get(0), row.get(1));
    let (threshold, scale, rows): (f64, f64, f64) = (row.get(2), row.get(3), row.get(4));
    let (place, outbox) = (context.outbox(), context.table.quoted());
    let mut findings = Vec::new();
    if !server {
        findings.push(AUTOVACUUM_OFF.found(
            "the server",
            "autovacuum, or track_counts, is off for all tables",
            "ALTER SYSTEM SET autovacuum = on; ALTER SYSTEM SET track_counts = on; SELECT pg_reload_conf();",
        ));
    }
    if !of_table {
        let remedy = format!("ALTER TABLE {outbox} RESET (autovacuum_enabled);");
        findings.push(AUTOVACUUM_OFF.found(&place, "autovacuum is off for this table", remedy));
    }
    findings.extend(wraparound(&place, row.get(5)));
    let due = threshold + scale * rows;
    if due > DEAD_ROWS_MAX.max(DEAD_SHARE_MAX * rows) {
        let problem = format!("vacuum starts after {due:.0} dead rows, in a table of about {rows:.0} rows");
        let remedy = format!(
            "ALTER TABLE {outbox} SET (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.01, \
             autovacuum_vacuum_insert_scale_factor = 0.05);"
        );
        findings.push(AUTOVACUUM_LATE.found(&place, problem, remedy));
    }
    findings
}

fn wraparound(place: &str, age: i32) -> Option<Finding> {
    let remedy = "end what holds vacuum back (see the other findings), then run VACUUM (FREEZE) in each database whose \
                  age(datfrozenxid) is high";
    let problem = format!("the oldest transaction that is not frozen is {age} transactions old");
    (age > AGE_MAX).then(|| WRAPAROUND.found(place, problem, remedy))
}

fn holders(_: &Context<'_>, rows: &[Row]) -> Vec<Finding> {
    let long = |held: &VacuumHolder| {
        held.transactions >= TRANSACTIONS_MAX || held.age.is_some_and(|age| age >= HELD_MAX)
    };
    rows.iter().map(VacuumHolder::from).filter(long).map(|held| held_back(&held)).collect()
}

fn held_back(held: &VacuumHolder) -> Finding {
    let age = held.age.map(|age| format!("open for {}; ", span(age))).unwrap_or_default();
    let problem =
        format!("{age}transactions begun since it started to hold back vacuum: {}", held.transactions);
    let place = format!("{} {}", held.what, held.name);
    match (held.what.as_str(), held.pid) {
        ("prepared transaction", _) => {
            let id = quote_literal(&held.name);
            let remedy = format!("ROLLBACK PREPARED {id}; (or COMMIT PREPARED, to keep its changes)");
            PREPARED_TRANSACTION.found(place, problem, remedy)
        }
        ("replication slot", _) if held.active => {
            let remedy = "check the standby that uses it, or set hot_standby_feedback = off there";
            REPLICATION_SLOT.found(place, problem, remedy)
        }
        ("replication slot", _) => {
            let remedy = format!("SELECT pg_drop_replication_slot({});", quote_literal(&held.name));
            REPLICATION_SLOT.found(place, format!("{problem}; the slot is not in use"), remedy)
        }
        (_, pid) => {
            let pid = pid.unwrap_or_default();
            LONG_TRANSACTION.found(place, problem, format!("SELECT pg_terminate_backend({pid});"))
        }
    }
}

const EXPLAINING: &str = "running EXPLAIN on the claim";

/// Checks that the claim and the scout use the pending index with the current statistics.
pub(super) async fn plan(context: &Context<'_>, schema: &Schema) -> Result<Vec<Finding>, PostgresFault> {
    let record_bytes_max = i32::try_from(context.settings.record_bytes_max).unwrap_or(i32::MAX);
    let Schema { payload, topics, .. } = schema;
    let statements =
        Statements::new(context.table, *payload, context.settings.on_sent, topics, record_bytes_max);
    let lanes: Vec<String> = (0..CLAIM_LANES).map(|lane| lane.to_string()).collect();
    let (lanes, lows) = (lanes.join(","), ["0"; CLAIM_LANES].join(","));
    let rows = context.settings.batch_rows;
    let shares = vec![(rows / CLAIM_LANES).max(1).to_string(); CLAIM_LANES].join(",");
    let scan = format!("'{{{lanes}}}', '{{{lows}}}', 0");
    let read = format!("{scan}, {rows}, {record_bytes_max}, '{{{shares}}}', '{{}}', 0");
    let scan = format!("{scan}, '{{}}', 0");
    let mut findings = Vec::new();
    for (who, sql, types, arguments) in [
        (
            "the claim",
            statements.text("read"),
            "smallint[], bigint[], bigint, bigint, integer, bigint[], bigint[], bigint",
            &read,
        ),
        ("the scout", statements.text("scan"), "smallint[], bigint[], bigint, bigint[], bigint", &scan),
    ] {
        if let Some(by) = wrong_read(&explain(context, sql, types, arguments).await?) {
            let problem = format!("{who} reads the outbox with {by}, not with the pending index");
            findings.push(CLAIM_PLAN.found(context.outbox(), problem, reindex(context.table)));
        }
    }
    Ok(findings)
}

/// Whatever the statistics are, only the pending index has the order of the claim. If the plan does not use it, the index is
/// unusable as it is.
fn reindex(table: &TableName) -> String {
    format!("REINDEX INDEX CONCURRENTLY {};", table.sibling(&table.pending_index_name()))
}

/// Explains the prepared statement under the settings of the relay's transactions. Does not execute it.
async fn explain(
    context: &Context<'_>,
    sql: &str,
    types: &str,
    arguments: &str,
) -> Result<Json, PostgresFault> {
    let connection = context.database.get().await?;
    let explained =
        answer(EXPLAINING, async { Ok(explained(&connection, sql, types, arguments).await) }).await?;
    if explained.is_err() {
        drop(Object::take(connection));
    }
    explained.map_err(|error| fault(EXPLAINING, error))
}

/// A prepared statement outlives its transaction, so it must be deallocated.
async fn explained(client: &Client, sql: &str, types: &str, arguments: &str) -> Result<Json, Error> {
    let settings = format!("{}; {PLAIN_NAMES}", plain_settings());
    client.batch_execute(&begin("READ ONLY", &settings)).await?;
    client.batch_execute(&format!("PREPARE outbox_relay_doctor ({types}) AS {sql}")).await?;
    let explain = format!("EXPLAIN (FORMAT JSON) EXECUTE outbox_relay_doctor ({arguments})");
    let explained = client.simple_query(&explain).await;
    // In one message, so that a pooler sends both to the same server connection.
    client.batch_execute("ROLLBACK; DEALLOCATE outbox_relay_doctor").await?;
    let text = explained?.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    Ok(serde_json::from_str(&text.unwrap_or_default()).unwrap_or_default())
}

/// Checks that the plan reads the outbox, whose alias is `o`, with an index condition on the lane and without a sort. Otherwise
/// returns how it is read.
fn wrong_read(plan: &Json) -> Option<String> {
    let mut nodes = vec![&plan[0]["Plan"]];
    let mut reads = false;
    while let Some(node) = nodes.pop() {
        let kind = node["Node Type"].as_str().unwrap_or_default();
        if node["Alias"] == "o" {
            let by_lane =
                node["Index Cond"].as_str().is_some_and(|condition| condition.contains("hashtext("));
            if kind != "Index Scan" || !by_lane {
                let index = node["Index Name"].as_str();
                let of = index.map(|name| format!(" of {name}")).unwrap_or_default();
                return Some(format!("{}{of}", article(kind)));
            }
            reads = true;
        }
        if kind.contains("Sort") {
            return Some("a sort".to_owned());
        }
        nodes.extend(node["Plans"].as_array().into_iter().flatten());
    }
    if reads { None } else { Some("an unknown kind of scan".to_owned()) }
}

fn article(kind: &str) -> String {
    let kind = kind.to_lowercase();
    let article = if kind.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {kind}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plan(node: &Json) -> Json {
        json!([{"Plan": {"Node Type": "Nested Loop", "Plans": [{"Node Type": "Limit", "Plans": [node]}]}}])
    }

    #[test]
    fn only_an_index_scan_by_lane_is_accepted() {
        let condition = "(((hashtext(aggregate_id) & 63) = l.lane) AND (id > 0))";
        let mut node =
            json!({"Node Type": "Index Scan", "Alias": "o", "Index Name": "x", "Index Cond": condition});
        assert_eq!(wrong_read(&plan(&node)), None);
        node["Index Cond"] = "(id > 0)".into();
        assert_eq!(wrong_read(&plan(&node)).unwrap(), "an index scan of x");
        let node = json!({"Node Type": "Seq Scan", "Alias": "o"});
        assert_eq!(wrong_read(&plan(&node)).unwrap(), "a seq scan");
        assert_eq!(wrong_read(&plan(&json!({"Node Type": "Incremental Sort"}))).unwrap(), "a sort");
        assert!(wrong_read(&json!([])).is_some());
    }

    #[test]
    fn age_is_reported_long_before_the_server_stops() {
        assert!(wraparound("app.outbox", AGE_MAX).is_none());
        let finding = wraparound("app.outbox", AGE_MAX + 1).unwrap();
        assert_eq!(finding.code.word, "wraparound");
    }
}
