//! Checks that the claim and the scout use the pending index with the current statistics.

use super::Context;
use super::schema::Schema;
use crate::connection::fault::{answer, fault};
use crate::connection::session::{PLAIN_NAMES, begin, plain_settings};
use crate::cycle::statements::Statements;
use crate::table::TableName;
use deadpool_postgres::Object;
use relay::failure::PostgresFault;
use serde_json::Value;
use settings::doctor::Finding;
use settings::doctor::codes::CLAIM_PLAN;
use tokio_postgres::{Client, Error, SimpleQueryMessage};

const DOING: &str = "running EXPLAIN on the claim";
/// The maximum number of lanes of a claim.
const LANES: usize = 16;

pub(super) async fn findings(
    context: &Context<'_>,
    schema: &Schema,
    record_bytes_max: usize,
) -> Result<Vec<Finding>, PostgresFault> {
    let record_bytes_max = i32::try_from(record_bytes_max).unwrap_or(i32::MAX);
    let Schema { payload, topics, .. } = schema;
    let statements =
        Statements::new(context.table, *payload, context.settings.on_sent, topics, record_bytes_max);
    let lanes: Vec<String> = (0..LANES).map(|lane| lane.to_string()).collect();
    let (lanes, lows) = (lanes.join(","), ["0"; LANES].join(","));
    let rows = context.settings.batch_rows;
    let shares = vec![(rows / LANES).max(1).to_string(); LANES].join(",");
    let scan = format!("'{{{lanes}}}', '{{{lows}}}', 0");
    let read = format!("{scan}, {rows}, {record_bytes_max}, '{{{shares}}}', '{{}}', 0");
    let scan = format!("{scan}, '{{}}', 0");
    let mut findings = Vec::new();
    for (who, sql, types, arguments) in [
        (
            "the claim",
            statements.read(),
            "smallint[], bigint[], bigint, bigint, integer, bigint[], bigint[], bigint",
            &read,
        ),
        ("the scout", statements.scan(), "smallint[], bigint[], bigint, bigint[], bigint", &scan),
    ] {
        if let Some(by) = wrong_read(&explain(context, sql, types, arguments).await?) {
            let problem = format!("{who} reads the outbox with {by}, not with the pending index");
            findings.push(CLAIM_PLAN.found(context.table.to_string(), problem, remedy(context.table)));
        }
    }
    Ok(findings)
}

/// Whatever the statistics are, only the pending index has the order of the claim. If the plan does not use it, the index is
/// unusable as it is.
fn remedy(table: &TableName) -> String {
    format!("REINDEX INDEX CONCURRENTLY {};", table.sibling(&table.pending_index_name()))
}

/// Explains the prepared statement under the settings of the relay's transactions. Does not execute it.
async fn explain(
    context: &Context<'_>,
    sql: &str,
    types: &str,
    arguments: &str,
) -> Result<Value, PostgresFault> {
    let connection = context.database.get().await?;
    let explained = answer(DOING, async { Ok(plan(&connection, sql, types, arguments).await) }).await?;
    if explained.is_err() {
        drop(Object::take(connection));
    }
    explained.map_err(|error| fault(DOING, error))
}

/// A prepared statement outlives its transaction, so it must be deallocated.
async fn plan(client: &Client, sql: &str, types: &str, arguments: &str) -> Result<Value, Error> {
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
fn wrong_read(plan: &Value) -> Option<String> {
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

    fn plan(node: &Value) -> Value {
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
}
