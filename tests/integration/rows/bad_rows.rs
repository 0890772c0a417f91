//! Rows that cannot become a record, and rows that only look like it. Each is delivered, or dead-lettered whole with
//! the right reason, and delays no other row.

use std::collections::HashMap;

use crate::support::consumer::{self, Record};
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::relay::Relay;
use crate::support::wait::{STALLED, wait_until};

/// A row as SQL expressions, and the reason for which it must be dead-lettered, if any.
struct Row {
    kind: &'static str,
    key: &'static str,
    event_type: &'static str,
    payload: &'static str,
    headers: &'static str,
    reason: Option<&'static str>,
}

const PLAIN: Row =
    Row { kind: "'order'", key: "", event_type: "'Changed'", payload: "'{}'", headers: "NULL", reason: None };
const TOO_LARGE: Option<&str> = Some("record-too-large");
const HEADERS: Option<&str> = Some("invalid-headers");
const NAME: Option<&str> = Some("invalid-topic-name");

const ROWS: &[Row] = &[
    Row { key: "''", ..PLAIN },
    Row { key: "repeat('k', 1000000)", reason: TOO_LARGE, ..PLAIN },
    Row { key: "repeat('k', 500000)", ..PLAIN },
    Row { event_type: "''", key: "'no type'", ..PLAIN },
    Row { event_type: "repeat('t', 1000000)", key: "'large type'", reason: TOO_LARGE, ..PLAIN },
    Row { payload: "NULL", key: "'null'", ..PLAIN },
    Row { payload: "to_json(repeat('x', 20000000))", key: "'20 MB'", reason: TOO_LARGE, ..PLAIN },
    Row { payload: "to_json(repeat('x', 1000000))", key: "'1 MB'", reason: TOO_LARGE, ..PLAIN },
    Row { payload: "to_json(repeat('x', 990000))", key: "'just fits'", ..PLAIN },
    Row { payload: r#"'{"nul": "a\u0000b", "half": "\ud800"}'"#, key: "'nul'", ..PLAIN },
    Row {
        headers: "(SELECT jsonb_object_agg('h' || n, 'v') FROM generate_series(1, 10000) AS n)",
        key: "'10k'",
        ..PLAIN
    },
    Row {
        headers: "jsonb_build_object('h', repeat('v', 2000000))",
        key: "'2 MB'",
        reason: TOO_LARGE,
        ..PLAIN
    },
    Row {
        headers: r#"'{"": "", " ": "x", "ä\n\"=:;": "ö", "event_id ": "no"}'"#,
        key: "'odd names'",
        ..PLAIN
    },
    Row { headers: "jsonb_build_object(repeat('n', 40000), 'v')", key: "'long name'", ..PLAIN },
    Row { headers: r#"'{"good": "x", "n": 12345}'"#, key: "'number'", reason: HEADERS, ..PLAIN },
    Row { headers: r#"'{"n": null}'"#, key: "'null header'", reason: HEADERS, ..PLAIN },
    Row { headers: r#"'{"n": {"deep": ["x"]}}'"#, key: "'nested'", reason: HEADERS, ..PLAIN },
    Row { headers: r#"'{"n": {"base64": "AAEC"}}'"#, key: "'binary'", ..PLAIN },
    Row { headers: r#"'{"n": {"base64": "AAE"}}'"#, key: "'no base64'", reason: HEADERS, ..PLAIN },
    Row { headers: r#"'{"n": {"base64": 12345}}'"#, key: "'base64 number'", reason: HEADERS, ..PLAIN },
    Row { headers: r#"'["x"]'"#, key: "'array'", reason: HEADERS, ..PLAIN },
    Row { headers: r#"'"x"'"#, key: "'scalar'", reason: HEADERS, ..PLAIN },
    Row { headers: "'null'", key: "'json null'", ..PLAIN },
    Row { headers: "'{}'", key: "'no headers'", ..PLAIN },
    Row { kind: "'a b'", key: "'space'", reason: NAME, ..PLAIN },
    Row { kind: "'a/b'", key: "'slash'", reason: NAME, ..PLAIN },
    Row { kind: "E'a\\nb'", key: "'line'", reason: NAME, ..PLAIN },
    Row { kind: "'\u{e4}'", key: "'unicode'", reason: NAME, ..PLAIN },
    Row { kind: "repeat('a', 300)", key: "'300'", reason: NAME, ..PLAIN },
    Row { kind: "repeat('a', 2000000)", key: "'2 MB kind'", reason: NAME, ..PLAIN },
];

/// Inserts each row between two valid rows of its key. All rounds are interleaved, so that each bad row also has valid
/// neighbors in its lane.
async fn insert_among_valid_rows(outbox: &Outbox, rows: &[Row]) {
    let columns = "aggregate_type, aggregate_id, event_type, payload, headers";
    for healthy in ["Before", "", "After"] {
        for row in rows {
            let values = if healthy.is_empty() {
                format!("{}, {}, {}, {}, {}", row.kind, row.key, row.event_type, row.payload, row.headers)
            } else {
                format!("'order', {}, '{healthy}', NULL, NULL", short_key(row))
            };
            run(&outbox.client, &format!("INSERT INTO app.outbox ({columns}) VALUES ({values})")).await;
        }
    }
}

/// The key as an expression for the valid rows. A key that is itself too large has none.
fn short_key(row: &Row) -> &'static str {
    if row.key.contains("1000000") { "'other'" } else { row.key }
}

async fn evaluate(outbox: &Outbox, expression: &str) -> String {
    outbox.client.query_one(&format!("SELECT ({expression})::text"), &[]).await.unwrap().get(0)
}

fn of_key<'a>(records: &'a [Record], key: &str) -> Vec<&'a Record> {
    records.iter().filter(|record| record.key.as_deref() == Some(key.as_bytes())).collect()
}

#[tokio::test]
async fn bad_rows_are_delivered_or_dead_lettered_whole_and_delay_no_other_row() {
    let outbox = Outbox::create("bad_rows", 3).await;
    insert_among_valid_rows(&outbox, ROWS).await;
    // The expected content of the dead letters.
    run(&outbox.client, "CREATE TABLE app.before AS TABLE app.outbox").await;
    let mut relay = outbox.start_relay().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success(), "{}", relay.log());

    let records = consumer::read_all(&outbox.topics()).await;
    let sql = "SELECT aggregate_id, event_type, reason FROM app.outbox_dead_letter ORDER BY outbox_id";
    let dead = outbox.client.query(sql, &[]).await.unwrap();
    let dead: HashMap<String, String> = dead.iter().map(|row| (row.get(0), row.get(2))).collect();
    for row in ROWS {
        let key = evaluate(&outbox, row.key).await;
        assert_eq!(dead.get(&key).map(String::as_str), row.reason, "the key {}", row.key);
        let types: Vec<String> = of_key(&records, &key)
            .iter()
            .map(|record| String::from_utf8_lossy(record.header("event_type").unwrap()).into_owned())
            .collect();
        let event_type = evaluate(&outbox, row.event_type).await;
        let expected: Vec<&str> = match (row.reason, short_key(row) == row.key) {
            (None, _) => vec!["Before", &event_type, "After"],
            (Some(_), true) => vec!["Before", "After"],
            (Some(_), false) => vec![],
        };
        assert_eq!(types, expected, "the key {}", row.key);
    }
    let rejected = ROWS.iter().filter(|row| row.reason.is_some()).count();
    assert_eq!(dead.len(), rejected);
    assert_eq!(records.len(), 3 * ROWS.len() - rejected, "no row is repeated");
    assert_eq!(of_key(&records, "10k")[1].headers.len(), 10_002);
    assert_eq!(of_key(&records, "null")[1].value, None);

    let whole = "SELECT count(*) FROM app.before AS b JOIN app.outbox_dead_letter AS d ON b.id = d.outbox_id
         WHERE (b.event_id, b.aggregate_type, b.aggregate_id, b.event_type, b.created_at)
             = (d.event_id, d.aggregate_type, d.aggregate_id, d.event_type, d.created_at)
           AND convert_to(b.payload::text, 'UTF8') IS NOT DISTINCT FROM d.payload
           AND b.headers IS NOT DISTINCT FROM d.headers
           AND d.requeued_at IS NULL AND d.error <> '' AND length(d.error) < 1000";
    assert_eq!(outbox.count(whole).await, rejected as i64, "every dead letter is whole");
    let gone = "SELECT count(*) FROM app.outbox JOIN app.outbox_dead_letter USING (event_id)";
    assert_eq!(outbox.count(gone).await, 0);
    outbox.drop().await;
}

#[tokio::test]
async fn names_that_kafka_reserves_are_dead_lettered_if_the_template_adds_nothing() {
    let outbox = Outbox::create("names", 1).await;
    let topic = outbox.topic("order");
    for kind in ["", ".", "..", " ", &topic] {
        let sql = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ($1, 'k', 'x')";
        outbox.client.execute(sql, &[&kind]).await.unwrap();
    }
    let mut relay = outbox.relay().set("outbox", "topic", "{aggregate_type}").start().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    let sql = "SELECT aggregate_type, reason FROM app.outbox_dead_letter ORDER BY outbox_id";
    let dead: Vec<(String, String)> =
        outbox.client.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    let expected = ["", ".", "..", " "].map(|kind| (kind.to_owned(), "invalid-topic-name".to_owned()));
    assert_eq!(dead, expected);
    assert_eq!(consumer::read_all(&[topic]).await.len(), 1);
    outbox.drop().await;
}

/// With the usual template, these names are valid topic names, so their rows wait for the topic.
#[tokio::test]
async fn odd_names_that_a_topic_may_have_are_held() {
    let mut outbox = Outbox::create("odd", 1).await;
    for kind in ["", ".", "..", "order"] {
        let sql = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ($1, 'k', 'x')";
        outbox.client.execute(sql, &[&kind]).await.unwrap();
    }
    let mut relay = outbox.start_relay().await;
    wait_until("three rows wait", STALLED, async || {
        outbox.unsent().await == 3 && outbox.count("SELECT count(*) FROM app.outbox_hold").await == 3
    })
    .await;
    for kind in ["", ".", ".."] {
        outbox.create_topic(kind, 1).await;
    }
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    assert_eq!(consumer::read_all(&outbox.topics()).await.len(), 4);
    outbox.drop().await;
}

/// For each payload type, with rows marked or deleted, with and without prepared statements.
#[tokio::test]
async fn dead_letters_are_whole_for_each_type_of_payload() {
    type Set = fn(Relay) -> Relay;
    let settings: [(&str, &str, Set); 3] = [
        ("bytea", "payload", |relay| relay.set("outbox", "on_sent", "delete")),
        ("jsonb", "convert_to(payload::text, 'UTF8')", |relay| {
            relay.set("postgres", "prepared_statements", false)
        }),
        ("text", "convert_to(payload, 'UTF8')", |relay| relay),
    ];
    for (name, bytes, set) in settings {
        let outbox = Outbox::create(&format!("dead_{name}"), 1).await;
        let sql = format!(
            "ALTER TABLE app.outbox ALTER payload TYPE {name} USING NULL;
             INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
             SELECT 'order', 'k', 'x', ('\"' || repeat('ab', 550000 * n) || '\"')::{name}
             FROM generate_series(0, 2) AS n;
             CREATE TABLE app.before AS SELECT event_id, {bytes} AS payload FROM app.outbox"
        );
        run(&outbox.client, &sql).await;
        let mut relay = set(outbox.relay()).start().await;
        outbox.wait_until_drained(STALLED).await;
        assert!(relay.stop().await.success());
        let whole = "SELECT count(*) FROM app.outbox_dead_letter JOIN app.before USING (event_id, payload)
                     WHERE reason = 'record-too-large'";
        assert_eq!(outbox.count(whole).await, 2, "{name}");
        assert_eq!(consumer::read_all(&outbox.topics()).await.len(), 1, "{name}");
        outbox.drop().await;
    }
}
