//! The statements of a relay with renamed columns use the same indexes as with the standard names.

use outbox_relay::config::OnSent;
use pg_outbox::topic::TopicTemplate;
use postgres::columns::PayloadType;
use postgres::connection::exec::{plain_settings, reaper_settings};
use postgres::cycle::statements::Statements;
use postgres::cycle::statements::reap_sql;
use relay::topic::TopicRules;
use tokio_postgres::SimpleQueryMessage;

use super::world::{NAMES, World, table};
use crate::support::database::run;

const INSERT: &str = "INSERT INTO app.event (aggregate_type, aggregate_id, event_type, sent_at)
                      SELECT 'order', 'order-' || n % 10000, 'Numbered'";

/// The history of the table, and when statistics were collected.
fn histories() -> [(&'static str, Vec<String>); 4] {
    let rows = |sent_at: &str, rows: i32| format!("{INSERT}, {sent_at} FROM generate_series(1, {rows}) AS n");
    let (unsent, sent, few) = (rows("NULL", 100_000), rows("now()", 100_000), rows("NULL", 100));
    [
        ("grown without statistics", vec![unsent.clone()]),
        ("analyzed when empty, then grown", vec!["ANALYZE app.events".to_owned(), unsent.clone()]),
        ("large and unsent, just analyzed", vec![unsent, "ANALYZE".to_owned()]),
        ("large and sent, then a few unsent", vec![sent, "VACUUM ANALYZE app.events".to_owned(), few]),
    ]
}

async fn plan(world: &World, settings: &str, sql: &str, types: &str, arguments: &str, mode: &str) -> String {
    let client = &world.client;
    run(
        client,
        &format!(
            "BEGIN; {settings}; SET LOCAL plan_cache_mode = {mode}; PREPARE statement ({types}) AS {sql}"
        ),
    )
    .await;
    let explained = client.simple_query(&format!("EXPLAIN EXECUTE statement ({arguments})")).await.unwrap();
    run(client, "DEALLOCATE statement; ROLLBACK").await;
    let line = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    explained.iter().filter_map(line).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn claim_scout_flow_settlement_and_reaper_use_their_index() {
    let renamed = table(&NAMES);
    let (lanes, lows, shares) = ("0,1,2,3", "0,0,0,0", "9,9,9,9");
    let scanned = format!("'{{{lanes}}}', '{{{lows}}}', 0");
    let read = format!("{scanned}, 5000, 1000000, '{{{shares}}}', '{{9}}', 0");
    let scan = format!("{scanned}, '{{9}}', 0, 10000");
    let flow = "7, '{3,5}', 0, 0, 1000000, 5000, '{1,2}', '{9}'";
    let flow_types = "bigint, bigint[], bigint, bigint, integer, bigint, smallint[], bigint[]";
    for (history, steps) in histories() {
        let world = World::adopted("adopted_plan").await;
        run(&world.client, "ALTER TABLE app.events SET (autovacuum_enabled = off)").await;
        for step in &steps {
            run(&world.client, step).await;
        }
        for on_sent in [OnSent::Mark, OnSent::Delete] {
            for topics in
                [TopicRules::from(TopicTemplate::default()), "{aggregate_type}.{event_type}".parse().unwrap()]
            {
                let statements = Statements::new(&renamed, PayloadType::Json, on_sent, topics, 1_000_000);
                let [backlog, oldest] = ["backlog", "oldest"].map(|name| statements.text(name));
                let [peek, read_new, read_if_free] =
                    ["peek", "read_new", "read_new_if_free"].map(|name| statements.text(name));
                let by_lane = "Index Scan using events_pending on events o";
                let by_id = "using events_id_key on events o";
                let claim_types = "smallint[], bigint[], bigint, bigint, integer, bigint[], bigint[], bigint";
                for (sql, types, arguments, index) in [
                    (statements.text("read"), claim_types, read.as_str(), by_lane),
                    (
                        statements.text("scan"),
                        "smallint[], bigint[], bigint, bigint[], bigint, bigint",
                        &scan,
                        by_lane,
                    ),
                    (backlog, "smallint[], bigint[]", &scanned[..scanned.len() - 3], by_lane),
                    (oldest, "smallint[], bigint[], bigint", &scanned, by_lane),
                    (peek, "bigint, bigint[], bigint[]", "7, '{3,5}', '{9}'", by_id),
                    (read_new, flow_types, flow, by_id),
                    (read_if_free, &format!("{flow_types}, bigint"), &format!("{flow}, 2"), by_id),
                ] {
                    for mode in ["force_generic_plan", "force_custom_plan"] {
                        let plan = plan(&world, &plain_settings(), sql, types, arguments, mode).await;
                        assert!(plan.contains(index), "{history}, {mode}:\n{plan}\n{sql}");
                        assert!(!plan.contains("Seq Scan on events o"), "{history}, {mode}:\n{plan}\n{sql}");
                    }
                }
            }
        }
        let delete =
            Statements::new(&renamed, PayloadType::Json, OnSent::Delete, TopicTemplate::default(), 1);
        let arguments = "'{\"(0,1)\"}', '{1}', '{00000000-0000-0000-0000-000000000001}'";
        let deleted = plan(
            &world,
            &plain_settings(),
            delete.text("delete"),
            "tid[], bigint[], uuid[]",
            arguments,
            "auto",
        )
        .await;
        assert!(deleted.contains("Tid Scan on events") && deleted.contains("hashed SubPlan"), "{deleted}");
        let arguments = "'(0,0)', '(9,0)', 60, 'app.events'";
        let types = "text, text, float8, text";
        let reaped = plan(&world, &reaper_settings(), &reap_sql(&renamed), types, arguments, "auto").await;
        assert!(reaped.contains("Tid Range Scan on events"), "{reaped}");
        world.drop().await;
    }
}

#[tokio::test]
async fn every_printed_statement_can_be_prepared_and_explained_with_renamed_columns() {
    let world = World::adopted("adopted_queries").await;
    for (on_sent, topic) in
        [("mark", "events.{aggregate_type}"), ("delete", "{aggregate_type}.{event_type}"), ("mark", "all")]
    {
        let relay = world.owner().set("outbox", "on_sent", on_sent).set("outbox", "topic", topic);
        let printed = relay.command(&["migrate", "--print-queries"]);
        let script = printed.succeeds();
        run(&world.client, script).await;
        let names = "SELECT name, cardinality(parameter_types) FROM pg_prepared_statements WHERE from_sql";
        let prepared = world.client.simple_query(names).await.unwrap();
        run(&world.client, &format!("BEGIN; {}", plain_settings())).await;
        let mut explained = 0;
        for message in &prepared {
            let SimpleQueryMessage::Row(row) = message else { continue };
            let arguments = vec!["NULL"; row.get(1).unwrap().parse().unwrap()].join(", ");
            run(&world.client, &format!("EXPLAIN EXECUTE {} ({arguments})", row.get(0).unwrap())).await;
            explained += 1;
        }
        assert_eq!(explained, script.matches("\nPREPARE ").count(), "{script}");
        run(&world.client, "ROLLBACK; DEALLOCATE ALL").await;
    }
    world.drop().await;
}
