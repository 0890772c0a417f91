//! The table: the checks at start, indexes and the plans that use them, triggers, constraints, vacuum.

use super::{Checked, Context, Schema};
use crate::columns::{Column, PayloadType};
use crate::connection::errors::{answer, unavailable};
use crate::connection::exec::{PLAIN_NAMES, SHORT_IDLE, begin, plain_settings};
use crate::cycle::statements::Statements;
use crate::diagnose::status::VacuumHolder;
use crate::options::OnSent;
use crate::schema::check::check;
use crate::schema::errors::{
    AUTOVACUUM_LATE, AUTOVACUUM_OFF, CLAIM_PLAN, CheckError, INDEX_INVALID, INDEX_UNUSED, LONG_TRANSACTION,
    OUTBOX_CONSTRAINT, OUTBOX_TRIGGER, PENDING_INDEX, PREPARED_TRANSACTION, REPLICATION_SLOT, SCHEMA_NEWER,
    WRAPAROUND,
};
use crate::schema::outbox::limited;
use crate::sql::sql;
use crate::table::{TableName, quote_literal};
use deadpool_postgres::Object;
use relay::failure::PostgresFault;
use serde_json::Value as Json;
use settings::doctor::Finding;
use settings::text::{self, span};
use std::time::Duration;
use tokio::time::timeout;
use tokio_postgres::{Row, SimpleQueryMessage};

const CHECKING: &str = "checking the schema";
const CHECKED_WITHIN: Duration = Duration::from_secs(30);
const VACUUM: &str = "checking vacuum";

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

/// Runs the checks at start.
pub(super) async fn schema(context: &Context<'_>) -> Result<Schema, PostgresFault> {
    let connection = context.database.get().await?;
    let configured = &context.settings.topics;
    let checked = check(&connection, context.table, configured.allow.is_some(), None);
    let checked = timeout(CHECKED_WITHIN, checked).await;
    // A statement may have failed, or an answer may be outstanding.
    drop(Object::take(connection));
    let (mut findings, is_older, difference) = match checked {
        Ok(Ok(facts)) => (Vec::new(), false, facts.difference),
        Ok(Err(CheckError::Faults(faults))) => (faults, false, None),
        Ok(Err(CheckError::Older(faults))) => (faults, true, None),
        Ok(Err(CheckError::Server(error))) => return Err(unavailable(CHECKING, error.to_string())),
        Err(_) => return Err(unavailable(CHECKING, format!("no response within {CHECKED_WITHIN:?}"))),
    };
    let remedy = "complete the upgrade, or leave it after a rollback";
    findings.extend(difference.map(|difference| SCHEMA_NEWER.found(context.table, difference, remedy)));
    // Not from the facts, because a schema with faults has none.
    let (payload, topic) = (context.table.columns().name(Column::Payload), context.table.columns().topic());
    let params = params![context.table.quoted() => TEXT, payload => TEXT, topic => TEXT];
    let rows = context.rows(CHECKING, sql!("doctor/columns"), &params).await?;
    let (payload, has_topic): (Option<&str>, bool) =
        rows.first().map_or((None, false), |row| (row.get(0), row.get(1)));
    Ok(Schema {
        findings,
        is_older,
        payload: payload.and_then(PayloadType::named).unwrap_or(PayloadType::Json),
        topics: configured.clone().with_column(has_topic),
    })
}

/// Finds unused and invalid indexes. The checks at start verify the pending index. If it is broken, an invalid index may be the
/// pending one under another name, which is already a finding.
pub(super) async fn indexes(context: &Context<'_>, schema: &Schema) -> Checked {
    let pending_is_broken = schema.has(&PENDING_INDEX);
    let [sent_at, id] = [Column::SentAt, Column::Id].map(|column| context.table.columns().name(column));
    let params = params![context.table.quoted() => TEXT, sent_at => TEXT, id => TEXT];
    let rows = context.rows("reading the indexes", sql!("doctor/indexes"), &params).await?;
    let mut findings = Vec::new();
    for row in &rows {
        let (name, valid, scans, needed): (&str, bool, i64, bool) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        let (changes, bytes): (i64, i64) = (row.get(4), row.get(5));
        let remedy = format!("DROP INDEX CONCURRENTLY {name};");
        if !valid && !pending_is_broken {
            let problem = format!("the index {name} is invalid");
            findings.push(INDEX_INVALID.found(context.table, problem, remedy));
        } else if valid && !needed && scans == 0 && changes >= ROWS_MIN {
            let problem = format!("the index {name} ({}) was never used", text::bytes(bytes));
            findings.push(INDEX_UNUSED.found(context.table, problem, remedy));
        }
    }
    Ok(findings)
}

pub(super) async fn sequence(context: &Context<'_>) -> Checked {
    let params = params![context.table.quoted() => TEXT, context.table.columns().name(Column::Id) => TEXT];
    let rows = context.rows("reading the sequence", sql!("check/sequence_limit"), &params).await?;
    Ok(rows.iter().map(|row| limited(context.table, row)).collect())
}

/// Finds triggers that may suppress the relay's updates and deletes. The checks at start find rules.
pub(super) async fn triggers(context: &Context<'_>) -> Checked {
    let (outbox, sent_at) = (context.table.quoted(), context.table.columns().name(Column::SentAt));
    let params = params![outbox => TEXT, sent_at => TEXT];
    let rows = context.rows("reading the triggers", sql!("doctor/triggers"), &params).await?;
    let finding = |row: &Row| {
        let name: &str = row.get(0);
        let problem = format!(
            "the trigger {name} runs before the relay's updates or deletes, and can suppress or undo them"
        );
        let remedy = format!(
            "check that it never returns NULL or OLD and keeps sent_at, or limit it to columns that the relay does not change: BEFORE UPDATE OF column. \
             To drop it: DROP TRIGGER {name} ON {outbox};"
        );
        OUTBOX_TRIGGER.found(context.table, problem, remedy)
    };
    Ok(rows.iter().map(finding).collect())
}

/// Finds constraints that may reject the relay's updates and deletes.
pub(super) async fn constraints(context: &Context<'_>) -> Checked {
    let sent_at = context.table.columns().name(Column::SentAt);
    let params = params![context.table.quoted() => TEXT, sent_at => TEXT];
    let rows = context.rows("reading the constraints", sql!("doctor/constraints"), &params).await?;
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
        OUTBOX_CONSTRAINT.found(context.table, problem, remedy)
    };
    Ok(rows.iter().filter(|row| marks || row.get::<_, bool>(2)).map(finding).collect())
}

pub(super) async fn autovacuum(context: &Context<'_>) -> Checked {
    let (place, outbox) = (context.table, context.table.quoted());
    let rows = context.rows(VACUUM, sql!("doctor/autovacuum"), &params![outbox => TEXT]).await?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let (server, of_table): (bool, bool) = (row.get(0), row.get(1));
    let (threshold, scale, rows): (f64, f64, f64) = (row.get(2), row.get(3), row.get(4));
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
        findings.push(AUTOVACUUM_OFF.found(place, "autovacuum is off for this table", remedy));
    }
    findings.extend(wraparound(place, row.get(5)));
    let limit = row.get::<_, Option<f64>>(6).filter(|limit| *limit >= 0.0);
    let due = (threshold + scale * rows).min(limit.unwrap_or(f64::INFINITY));
    if due > DEAD_ROWS_MAX.max(DEAD_SHARE_MAX * rows) {
        let problem = format!("vacuum starts after {due:.0} dead rows, in a table of about {rows:.0} rows");
        let remedy = format!(
            "ALTER TABLE {outbox} SET (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.01, \
             autovacuum_vacuum_insert_scale_factor = 0.05);"
        );
        findings.push(AUTOVACUUM_LATE.found(place, problem, remedy));
    }
    Ok(findings)
}

fn wraparound(place: &TableName, age: i32) -> Option<Finding> {
    let remedy = "end what holds vacuum back (see the other findings), then run VACUUM (FREEZE) in each database whose \
                  age(datfrozenxid) is high";
    let problem = format!("the oldest transaction that is not frozen is {age} transactions old");
    (age > AGE_MAX).then(|| WRAPAROUND.found(place, problem, remedy))
}

pub(super) async fn vacuum_holders(context: &Context<'_>) -> Checked {
    let params = params![HOLDERS_SHOWN => INT8];
    let rows = context.rows(VACUUM, sql!("status/vacuum_holders"), &params).await?;
    let name = context.settings.relay_name.as_str();
    let long = |held: &VacuumHolder| {
        let is_ordinary_claim = held.is_ordinary_claim(name, context.settings.claim_within);
        let is_old = held.age.is_some_and(|age| age >= HELD_MAX);
        !is_ordinary_claim && (held.transactions >= TRANSACTIONS_MAX || is_old)
    };
    Ok(rows.iter().map(VacuumHolder::from).filter(long).map(|held| held_back(&held)).collect())
}

fn held_back(held: &VacuumHolder) -> Finding {
    let age = held.age.map(|age| format!("open for {}; ", span(age))).unwrap_or_default();
    let mut problem =
        format!("{age}transactions begun since it started to hold back vacuum: {}", held.transactions);
    let name = quote_literal(&held.name);
    let (code, remedy) = match held.what.as_str() {
        "prepared transaction" => (
            &PREPARED_TRANSACTION,
            format!("COMMIT PREPARED {name}; or ROLLBACK PREPARED, as its transaction manager has decided"),
        ),
        "replication slot" if held.active => {
            let remedy = "check the standby that uses it, or set hot_standby_feedback = off there";
            (&REPLICATION_SLOT, remedy.to_owned())
        }
        "replication slot" => {
            problem += "; the slot is not in use";
            let remedy =
                format!("SELECT pg_drop_replication_slot({name}); unless something will use it again");
            (&REPLICATION_SLOT, remedy)
        }
        // A standby whose connection is terminated connects again.
        "standby" => {
            let remedy = "end the long query on that standby, or set hot_standby_feedback = off there";
            (&LONG_TRANSACTION, remedy.to_owned())
        }
        _ => {
            let end = format!("SELECT pg_terminate_backend({});", held.pid.unwrap_or_default());
            (&LONG_TRANSACTION, format!("{end} if what it does may be rolled back"))
        }
    };
    code.found(format!("{} {}", held.what, held.name), problem, remedy)
}

/// Checks that the claim and the scout use the pending index with the current statistics.
pub(super) async fn plan(context: &Context<'_>, schema: &Schema) -> Checked {
    let record_bytes_max = i32::try_from(context.settings.record_bytes_max).unwrap_or(i32::MAX);
    let Schema { payload, topics, .. } = schema;
    let statements =
        Statements::new(context.table, *payload, context.settings.on_sent, topics.clone(), record_bytes_max);
    let lanes: Vec<String> = (0..CLAIM_LANES).map(|lane| lane.to_string()).collect();
    let (lanes, lows) = (lanes.join(","), ["0"; CLAIM_LANES].join(","));
    let rows = context.settings.batch_rows;
    let shares = vec![(rows / CLAIM_LANES).max(1).to_string(); CLAIM_LANES].join(",");
    let scan = format!("'{{{lanes}}}', '{{{lows}}}', 0");
    let read = format!("{scan}, {rows}, {record_bytes_max}, '{{{shares}}}', '{{}}', 0");
    let scan = format!("{scan}, '{{}}', 0, 10000");
    let mut findings = Vec::new();
    for (who, sql, types, arguments) in [
        (
            "the claim",
            statements.text("read"),
            "smallint[], bigint[], bigint, bigint, integer, bigint[], bigint[], bigint",
            &read,
        ),
        (
            "the scout",
            statements.text("scan"),
            "smallint[], bigint[], bigint, bigint[], bigint, bigint",
            &scan,
        ),
    ] {
        if let Some(by) = wrong_read(&explain(context, sql, types, arguments).await?) {
            let problem = format!("{who} reads the outbox with {by}, not with the pending index");
            // Whatever the statistics are, only this index has the order of the claim. If the plan does not use it, the index is
            // unusable as it is.
            let index = context.table.sibling(&context.table.pending_index_name());
            let remedy = format!("REINDEX INDEX CONCURRENTLY {index};");
            findings.push(CLAIM_PLAN.found(context.table, problem, remedy));
        }
    }
    Ok(findings)
}

/// Explains the prepared statement under the settings of the relay's transactions. Does not execute it.
async fn explain(
    context: &Context<'_>,
    sql: &str,
    types: &str,
    arguments: &str,
) -> Result<Json, PostgresFault> {
    let connection = context.database.get().await?;
    let explained = answer("running EXPLAIN on the claim", async {
        let settings = format!("{SHORT_IDLE}{}; {PLAIN_NAMES}", plain_settings());
        connection.batch_execute(&begin("READ ONLY", &settings)).await?;
        connection.batch_execute(&format!("PREPARE outbox_relay_doctor ({types}) AS {sql}")).await?;
        let explain = format!("EXPLAIN (FORMAT JSON) EXECUTE outbox_relay_doctor ({arguments})");
        let explained = connection.simple_query(&explain).await;
        // A prepared statement outlives its transaction. In one message, so that a pooler sends both to the same server
        // connection.
        connection.batch_execute("ROLLBACK; DEALLOCATE outbox_relay_doctor").await?;
        let text = explained?.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        Ok(serde_json::from_str(&text.unwrap_or_default()).unwrap_or_default())
    })
    .await;
    if explained.is_err() {
        drop(Object::take(connection));
    }
    explained
}

/// Checks that all reads of the outbox, whose alias is `o`, are with an index condition on the lane and without a sort. Otherwise
/// returns how it is read.
fn wrong_read(plan: &Json) -> Option<String> {
    let mut nodes = vec![&plan[0]["Plan"]];
    let mut reads = false;
    while let Some(node) = nodes.pop() {
        let kind = node["Node Type"].as_str().unwrap_or_default();
        // EXPLAIN numbers an alias that is used more than once.
        let is_outbox = node["Alias"].as_str().is_some_and(|alias| alias == "o" || alias.starts_with("o_"));
        if is_outbox && kind != "Subquery Scan" {
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
        let subquery = |of: &Json| json!({"Node Type": "Subquery Scan", "Alias": "o", "Plans": [of]});
        node["Alias"] = "o_1".into();
        assert_eq!(wrong_read(&plan(&subquery(&node))), None);
        let seq_scan = json!({"Node Type": "Seq Scan", "Alias": "o_2"});
        assert_eq!(wrong_read(&plan(&subquery(&seq_scan))).unwrap(), "a seq scan");
        node["Index Cond"] = "(id > 0)".into();
        assert_eq!(wrong_read(&plan(&node)).unwrap(), "an index scan of x");
        let node = json!({"Node Type": "Seq Scan", "Alias": "o"});
        assert_eq!(wrong_read(&plan(&node)).unwrap(), "a seq scan");
        assert_eq!(wrong_read(&plan(&json!({"Node Type": "Incremental Sort"}))).unwrap(), "a sort");
        assert!(wrong_read(&json!([])).is_some());
    }

    #[test]
    fn age_is_reported_long_before_the_server_stops() {
        let table: TableName = "app.outbox".parse().unwrap();
        assert!(wraparound(&table, AGE_MAX).is_none());
        let finding = wraparound(&table, AGE_MAX + 1).unwrap();
        assert_eq!(finding.code.word, "wraparound");
    }
}
