//! The claim, the scout and the settlement use their index, whatever the statistics are.

use outbox_relay::config::OnSent;
use pg_outbox::topic::TopicTemplate;
use postgres::columns::PayloadType;
use postgres::connection::exec::plain_settings;
use postgres::cycle::statements::Statements;
use postgres::table::TableName;
use relay::topic::TopicRules;

use crate::support::database::run;
use crate::support::outbox::Outbox;

const UNSENT: &str = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type)
                      SELECT 'order', 'order-' || n % 10000, 'Numbered' FROM generate_series(1, 200000) AS n";
const SENT: &str = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, sent_at)
                    SELECT 'order', 'order-' || n % 10000, 'Numbered', now() FROM generate_series(1, 200000) AS n";
const FEW: &str = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type)
                   SELECT 'order', 'order-' || n, 'Numbered' FROM generate_series(1, 100) AS n";
const EMPTY: &str = "TRUNCATE app.outbox";
const BY_LANE: &str = "CREATE INDEX by_lane ON app.outbox ((hashtext(aggregate_id) & 63))";
const ONE_KEY: &str = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type)
                       SELECT 'order', 'one', 'Numbered' FROM generate_series(1, 20000)";
const HOLDS: &str = "INSERT INTO app.outbox_hold (topic, reason, error)
                     SELECT 'events.held-' || n, 'unknown-topic', '' FROM generate_series(1, 1000) AS n";

const PAUSES: &str = "INSERT INTO app.outbox_pause (topic, aggregate_type, aggregate_id)
                      SELECT CASE WHEN n % 2 = 0 THEN 'events.paused-' || n END, CASE WHEN n % 2 = 1 THEN 'order' END,
                             CASE WHEN n % 2 = 1 THEN 'paused-' || n END
                      FROM generate_series(1, 1000) AS n";

/// The history of the table, and when statistics were collected.
const HISTORIES: &[(&str, &[&str])] = &[
    ("empty, never analyzed", &[]),
    ("grown without statistics", &[UNSENT]),
    ("analyzed when empty, then grown", &["ANALYZE app.outbox", UNSENT]),
    ("analyzed when small, then grown", &[FEW, "ANALYZE app.outbox", UNSENT]),
    ("small, just analyzed", &[FEW, "ANALYZE"]),
    ("large and unsent, just analyzed", &[UNSENT, "ANALYZE"]),
    ("large and sent, just analyzed", &[SENT, "ANALYZE"]),
    ("large and sent, just analyzed, a few unsent since", &[SENT, "VACUUM ANALYZE app.outbox", FEW]),
    ("analyzed when unsent, all sent since", &[UNSENT, "ANALYZE", "UPDATE app.outbox SET sent_at = now()"]),
    // The statistics of the columns outlive TRUNCATE, but the table counts as empty.
    (
        "analyzed when sent, emptied, grown",
        &[SENT, FEW, "ANALYZE", EMPTY, "VACUUM ANALYZE app.outbox", UNSENT],
    ),
    (
        "analyzed when unsent, emptied, grown",
        &[UNSENT, "ANALYZE", EMPTY, "VACUUM ANALYZE app.outbox", UNSENT],
    ),
    ("analyzed when sent, emptied", &[SENT, FEW, "ANALYZE", EMPTY, "VACUUM ANALYZE app.outbox"]),
    (
        "another index of the unsent rows",
        &[SENT, "ANALYZE", "CREATE INDEX by_id ON app.outbox (id) WHERE sent_at IS NULL"],
    ),
    // An index on the lane gives the planner statistics about it. They are from a time when there was only one key.
    ("analyzed with one key and an index on the lane, then grown", &[BY_LANE, ONE_KEY, "ANALYZE", UNSENT]),
    ("a thousand held topics", &[HOLDS, UNSENT, "ANALYZE"]),
    ("a thousand held topics since the last statistics", &[UNSENT, "ANALYZE", HOLDS]),
    ("a thousand pauses", &[PAUSES, UNSENT, "ANALYZE"]),
    ("a thousand pauses since the last statistics", &[UNSENT, "ANALYZE", PAUSES]),
];

/// The ways to plan a prepared statement: once for all arguments, or for each execution.
const MODES: [&str; 2] = ["force_generic_plan", "force_custom_plan"];

const READ_TYPES: &str = "smallint[], bigint[], bigint, bigint, integer, bigint[], bigint[], bigint";

fn statements(on_sent: OnSent) -> Statements {
    statements_for(on_sent, TopicTemplate::default().into())
}

fn statements_for(on_sent: OnSent, topics: TopicRules) -> Statements {
    let table: TableName = "app.outbox".parse().unwrap();
    Statements::new(&table, PayloadType::Json, on_sent, topics, 1_000_000)
}

/// The plan of a prepared statement with the settings of the relay.
async fn plan(outbox: &Outbox, sql: &str, types: &str, arguments: &str, mode: &str) -> String {
    let client = &outbox.client;
    run(client, &format!("BEGIN; {}; SET LOCAL plan_cache_mode = {mode}", plain_settings())).await;
    run(client, &format!("PREPARE claim ({types}) AS {sql}")).await;
    let explained = client.simple_query(&format!("EXPLAIN EXECUTE claim ({arguments})")).await.unwrap();
    run(client, "DEALLOCATE claim; ROLLBACK").await;
    let line = |message: &tokio_postgres::SimpleQueryMessage| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    explained.iter().filter_map(line).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn claim_scout_and_settlement_use_their_index_whatever_the_statistics() {
    for (history, steps) in HISTORIES {
        let outbox = Outbox::without_topics("plan").await;
        run(&outbox.client, "ALTER TABLE app.outbox SET (autovacuum_enabled = off)").await;
        for step in *steps {
            run(&outbox.client, step).await;
        }
        run(&outbox.client, "ALTER TABLE app.outbox ADD COLUMN topic text").await;
        for on_sent in [OnSent::Mark, OnSent::Delete] {
            claim_and_scout_use_the_pending_index(&outbox, history, on_sent).await;
            flow_finds_rows_by_id(&outbox, history, on_sent).await;
        }
        settlement_deletes_by_place(&outbox, history).await;
        outbox.drop().await;
    }
}

async fn claim_and_scout_use_the_pending_index(outbox: &Outbox, history: &str, on_sent: OnSent) {
    for (topics, rules) in [
        ("by aggregate type", TopicRules::from(TopicTemplate::default())),
        ("by event type", "{aggregate_type}.{event_type}".parse().unwrap()),
        ("by column", TopicRules::from(TopicTemplate::default()).with_column(true)),
    ] {
        let statements = statements_for(on_sent, rules);
        reads_use_the_pending_index(outbox, &statements, &format!("{history}, {topics}")).await;
    }
}

async fn reads_use_the_pending_index(outbox: &Outbox, statements: &Statements, history: &str) {
    let [backlog, oldest] = ["backlog", "oldest"].map(|name| statements.text(name));
    let oldest_types = "smallint[], bigint[], bigint";
    for lanes in ["7".to_owned(), (0..16).map(|lane| lane.to_string()).collect::<Vec<_>>().join(",")] {
        let lows = lanes.split(',').map(|_| "0").collect::<Vec<_>>().join(",");
        let scanned = format!("'{{{lanes}}}', '{{{lows}}}', 0");
        let shares = lanes.split(',').map(|_| "313").collect::<Vec<_>>().join(",");
        let read = format!("{scanned}, 5000, 1000000, '{{{shares}}}', '{{9}}', 0");
        for (sql, types, arguments) in [
            (statements.text("read"), READ_TYPES, &read),
            (
                statements.text("scan"),
                "smallint[], bigint[], bigint, bigint[], bigint, bigint",
                &format!("{scanned}, '{{9}}', 0, 10000"),
            ),
            (backlog, "smallint[], bigint[]", &format!("'{{{lanes}}}', '{{{lows}}}'")),
            (oldest, oldest_types, &scanned),
        ] {
            for mode in MODES {
                let plan = plan(outbox, sql, types, arguments, mode).await;
                let shown = format!("{history}, {mode}, lanes {lanes}:\n{plan}");
                assert!(plan.contains("Index Scan using outbox_pending on outbox o"), "{shown}");
                assert!(plan.contains("(hashtext(aggregate_id) & 63) = "), "{shown}");
                assert!(!plan.contains("Sort") && !plan.contains("Bitmap"), "{shown}");
                assert!(!plan.contains("Seq Scan on outbox o"), "{shown}");
            }
        }
    }
}

async fn flow_finds_rows_by_id(outbox: &Outbox, history: &str, on_sent: OnSent) {
    let by_event_type = "{aggregate_type}.{event_type}".parse().unwrap();
    let by_column = TopicRules::from(TopicTemplate::default()).with_column(true);
    for topics in [TopicTemplate::default().into(), by_event_type, by_column] {
        flow_reads_use_the_primary_key(outbox, &statements_for(on_sent, topics), history).await;
    }
}

/// Rows above the highest id come from the primary key in its order, and gaps are looked up in it. The cheap read walks the
/// primary key from the first gap.
async fn flow_reads_use_the_primary_key(outbox: &Outbox, statements: &Statements, history: &str) {
    let arguments = "7, '{3,5}', 0, 0, 1000000, 5000, '{1,2}', '{9}'";
    let types = "bigint, bigint[], bigint, bigint, integer, bigint, smallint[], bigint[]";
    let [peek, read, read_if_free] =
        ["peek", "read_new", "read_new_if_free"].map(|name| statements.text(name));
    let by_id_and_gaps =
        &["using outbox_pkey on outbox i_1", "Index Cond: (id = ANY (", "Index Cond: (id > "];
    let by_id = &["using outbox_pkey on outbox o", "Index Cond: (id > "];
    for (sql, arguments, types, parts) in [
        (peek, "7, '{3,5}', '{9}'", "bigint, bigint[], bigint[]", &by_id_and_gaps[..]),
        (read, arguments, types, by_id_and_gaps),
        (read_if_free, &format!("{arguments}, 2"), &format!("{types}, bigint"), by_id),
    ] {
        for mode in MODES {
            let plan = plan(outbox, sql, types, arguments, mode).await;
            let shown = format!("{history}, {mode}:\n{plan}");
            for part in parts {
                assert!(plan.contains(part), "{part} is missing. {shown}");
            }
            assert!(
                !["i", "o"].iter().any(|name| plan.contains(&format!("Seq Scan on outbox {name}"))),
                "{shown}"
            );
            assert!(!plan.contains("Sort") || parts.len() > 2, "{shown}");
        }
    }
}

/// Rows are deleted by ctid, and each id is looked up in a hash table. `id = ANY($2)` would compare each id with all of
/// them.
async fn settlement_deletes_by_place(outbox: &Outbox, history: &str) {
    let statements = statements(OnSent::Delete);
    for mode in MODES {
        let arguments = "'{\"(0,1)\",\"(0,2)\"}', '{1,2}', '{00000000-0000-0000-0000-000000000001}'";
        let plan = plan(outbox, statements.text("delete"), "tid[], bigint[], uuid[]", arguments, mode).await;
        let shown = format!("{history}, {mode}:\n{plan}");
        assert!(plan.contains("Tid Scan on outbox") && plan.contains("hashed SubPlan"), "{shown}");
    }
}

/// The cost of claiming a few rows after many sent ones depends only on the few rows.
#[tokio::test]
async fn claim_reads_few_pages_in_addition_to_those_of_its_rows() {
    let outbox = Outbox::without_topics("pages").await;
    run(&outbox.client, "ALTER TABLE app.outbox SET (autovacuum_enabled = off)").await;
    for step in [FEW, "ANALYZE app.outbox", SENT, "UPDATE app.outbox SET sent_at = now()", FEW] {
        run(&outbox.client, step).await;
    }
    let statements = statements(OnSent::Mark);
    let lanes = (0..64).map(|lane| lane.to_string()).collect::<Vec<_>>().join(",");
    let lows = vec!["0"; 64].join(",");
    run(&outbox.client, &format!("BEGIN; {}", plain_settings())).await;
    let shares = vec!["79"; 64].join(",");
    run(&outbox.client, &format!("PREPARE claim ({READ_TYPES}) AS {}", statements.text("read"))).await;
    let explain = format!(
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE claim ('{{{lanes}}}', '{{{lows}}}', 0, 5000, 1000000, '{{{shares}}}', '{{9}}', 0)"
    );
    let explained = outbox.client.simple_query(&explain).await.unwrap();
    let text = explained.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    let json: serde_json::Value = serde_json::from_str(&text.unwrap()).unwrap();
    let plan = &json[0]["Plan"];
    let buffers = plan["Shared Hit Blocks"].as_i64().unwrap() + plan["Shared Read Blocks"].as_i64().unwrap();
    println!("{buffers} buffers for {} rows after 200,100 sent ones", plan["Actual Rows"]);
    assert!(plan["Actual Rows"].as_f64() == Some(100.0), "{json:#}");
    // Two index pages per lane and one page per row, with room for the versions of the first hundred rows.
    assert!(buffers < 64 * 4 + 4 * 100, "{json:#}");
    run(&outbox.client, "ROLLBACK").await;
    outbox.drop().await;
}

/// IDs and places can be used again while a claim waits for Kafka.
#[tokio::test]
async fn row_with_the_place_and_the_id_of_another_event_is_not_deleted() {
    const ROW: &str = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', 'key', 'Changed')";
    let outbox = Outbox::without_topics("place").await;
    run(&outbox.client, ROW).await;
    let delete = statements(OnSent::Delete).text("delete").to_owned();
    run(&outbox.client, &format!("PREPARE settle (tid[], bigint[], uuid[]) AS {delete}")).await;
    let row =
        outbox.client.query_one("SELECT ctid::text, id, event_id::text FROM app.outbox", &[]).await.unwrap();
    let (place, id, event_id): (String, i64, String) = (row.get(0), row.get(1), row.get(2));
    let settle = |event: &str| format!("EXECUTE settle ('{{\"{place}\"}}', '{{{id}}}', '{{{event}}}')");
    run(&outbox.client, &settle("00000000-0000-0000-0000-000000000000")).await;
    assert_eq!(outbox.unsent().await, 1, "another event");
    run(&outbox.client, &settle(&event_id)).await;
    assert_eq!(outbox.unsent().await, 0);
    outbox.drop().await;
}
