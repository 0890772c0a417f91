//! Requeued events are delivered once, with the same content as the original.

use serde_json::Value;
use std::collections::HashMap;
use std::process::Stdio;
use uuid::Uuid;

use super::{add_dead_letters, filled};
use crate::operating::commands::Setup;
use crate::support::consumer;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::topics;
use crate::support::wait::{STALLED, wait_until};

/// For each type of the payload column: a large payload, and a tombstone whose headers are too large. Kafka refuses
/// both, its limit is raised, and both arrive unchanged.
#[tokio::test]
async fn requeued_event_is_delivered_with_its_event_id_and_its_bytes() {
    const DIGITS: &str = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 1000) AS n)";
    for (name, payload, bytes) in [
        (
            "json",
            "('{\"b\":  1, \"a\": \"' || digits || '\\u0000\\ud83d\\ude00\" }')::json",
            "convert_to(payload::text, 'UTF8')",
        ),
        (
            "jsonb",
            "('{\"b\":  1, \"a\": \"' || digits || 'ä\"}')::jsonb",
            "convert_to(payload::text, 'UTF8')",
        ),
        ("text", "' no JSON ä' || digits", "convert_to(payload, 'UTF8')"),
        ("bytea", "'\\xff00fe'::bytea || decode(digits, 'hex') || decode(reverse(digits), 'hex')", "payload"),
    ] {
        let mut outbox = Outbox::without_topics(&format!("requeue_{name}")).await;
        outbox.create_topic_with("order", 1, &[("max.message.bytes", "20000")]).await;
        let sql = format!(
            "ALTER TABLE app.outbox ALTER payload TYPE {name} USING NULL;
             INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload, headers, created_at)
             SELECT 'order', 'k' || n, 'Placed', CASE WHEN n = 1 THEN {payload} END,
                    CASE WHEN n = 1 THEN '{{\"traceparent\": \"00-ab\"}}' ELSE jsonb_build_object('h', digits) END,
                    '2020-02-02 02:02:02.123456Z'
             FROM (SELECT {DIGITS}) AS of(digits), generate_series(1, 2) AS n;
             CREATE TABLE app.before AS
             SELECT event_id, aggregate_id AS key, {bytes} AS bytes, headers, created_at FROM app.outbox"
        );
        run(&outbox.client, &sql).await;
        let headers = || {
            let relay = outbox.relay().set_inner("outbox", "headers", "event_id", "{event_id}");
            let relay = relay.set_inner("outbox", "headers", "event_type", "{event_type}");
            let relay = relay.set_inner("outbox", "headers", "aggregate_type", "{aggregate_type}");
            relay.set_inner("outbox", "headers", "created_at", "{created_at}")
        };
        let mut relay = headers().start().await;
        outbox.wait_until_drained(STALLED).await;
        let dead = "SELECT count(*) FROM app.outbox_dead_letter WHERE reason = 'record-too-large'";
        assert_eq!(outbox.count(dead).await, 2, "{name}");
        assert_eq!(consumer::read_all(&outbox.topics()).await, [], "{name}");

        topics::alter(&outbox.topic("order"), "max.message.bytes", "1000000").await;
        // For some types as with an old pooler.
        let operator = outbox.operator().set("postgres", "prepared_statements", name.starts_with("json"));
        let done = operator.command(&["dead-letters", "requeue", "--all"]);
        assert_eq!(done.succeeds(), "app.outbox: 2 dead letters requeued\n");
        outbox.wait_until_drained(STALLED).await;
        assert!(relay.stop().await.success(), "{}", relay.log());
        assert_eq!(
            outbox.count("SELECT count(*) FROM app.outbox_dead_letter").await,
            2,
            "the events must not be refused again"
        );

        let records = consumer::read_all(&outbox.topics()).await;
        let records: HashMap<Uuid, _> = records.iter().map(|r| (r.event_id().unwrap(), r)).collect();
        let before = outbox.client.query("SELECT *, headers ->> 'h' FROM app.before", &[]).await.unwrap();
        assert_eq!(records.len(), 2, "{name}");
        for row in before {
            let record = records[&row.get::<_, Uuid>(0)];
            assert_eq!(record.key.as_deref(), Some(row.get::<_, &str>(1).as_bytes()), "{name}");
            assert!(record.value.as_deref() == row.get::<_, Option<&[u8]>>(2), "{name}: the value differs");
            assert_eq!(record.header("event_type"), Some(b"Placed".as_slice()));
            assert_eq!(record.header("aggregate_type"), Some(b"order".as_slice()));
            assert_eq!(
                record.header("created_at"),
                Some(b"2020-02-02T02:02:02.123456Z".as_slice()),
                "{name}"
            );
            assert_eq!(record.header("h"), row.get::<_, Option<&str>>(5).map(str::as_bytes), "{name}");
        }
        outbox.drop().await;
    }
}

#[tokio::test]
async fn dead_letters_are_not_requeued_twice_unless_again_is_given() {
    let setup = filled("letters_again").await;
    let requeue = |extra: &[&str]| {
        let ended = setup.relay(&[&["dead-letters", "requeue"], extra].concat());
        ended.succeeds().to_owned()
    };
    assert_eq!(requeue(&["--all"]), "app.outbox: 3 dead letters requeued\n");
    assert_eq!(requeue(&["--all"]), "app.outbox: 0 dead letters requeued\n");
    assert_eq!(requeue(&["--id", "1"]), "app.outbox: 0 dead letters requeued\n");
    assert_eq!(requeue(&["--id", "1", "--again"]), "app.outbox: 1 dead letter requeued\n");
    assert_eq!(requeue(&["--all", "--again", "--limit", "4"]), "app.outbox: 4 dead letters requeued\n");
    // In the order in which the events were refused, each with its own event id.
    let sql = "SELECT array_agg(right(event_id::text, 1)::int ORDER BY id) FROM app.outbox";
    let events: Vec<i32> = setup.client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(events, [1, 3, 5, 1, 1, 2, 3, 4]);
    assert_eq!(setup.number("SELECT count(*) FROM app.outbox_act WHERE act = 'requeue'").await, 8);
    assert_eq!(
        setup
            .number("SELECT count(*) FROM app.outbox WHERE sent_at IS NULL AND payload::text LIKE '%secret%'")
            .await,
        8
    );
    setup.drop(&[]).await;
}

#[tokio::test]
async fn two_operators_at_once_requeue_each_dead_letter_once() {
    let setup = Setup::migrated("letters_two").await;
    add_dead_letters(&setup, 1050).await;
    setup.sql("BEGIN; SELECT FROM app.outbox_dead_letter WHERE id = 50 FOR UPDATE").await;
    let start = || {
        let mut command = setup.command(&["dead-letters", "requeue", "--all", "--json"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let operators = [start(), start()];
    // Both operators have selected the same batch.
    let other = setup.database.connect().await;
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    wait_until("both operators wait", STALLED, async || {
        other.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 2
    })
    .await;
    setup.sql("COMMIT").await;
    let mut done = 0;
    for operator in operators {
        let output = operator.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        done += object["dead_letters"].as_i64().unwrap();
    }
    assert_eq!(done, 1050);
    assert_eq!(setup.number("SELECT count(*) FROM app.outbox").await, 1050);
    assert_eq!(setup.number("SELECT count(DISTINCT event_id) FROM app.outbox").await, 1050);
    assert_eq!(setup.number("SELECT count(DISTINCT dead_letter_id) FROM app.outbox_act").await, 1050);
    setup.drop(&[]).await;
}

/// A relay turns the events into dead letters again while the command runs.
#[tokio::test]
async fn requeue_ends_even_if_the_events_are_refused_immediately() {
    let outbox = Outbox::create("requeue_end", 1).await;
    run(
        &outbox.client,
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, headers)
         SELECT 'order', n::text, 'x', '[]' FROM generate_series(1, 1000) AS n",
    )
    .await;
    let relay = outbox.relay().set("outbox", "rejections_before_hold", 10_000).start().await;
    outbox.wait_until_drained(STALLED).await;
    let done = outbox.operator().command(&["dead-letters", "requeue", "--all"]);
    assert_eq!(done.succeeds(), "app.outbox: 1000 dead letters requeued\n");
    outbox.wait_until_drained(STALLED).await;
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox_dead_letter").await, 2000);
    drop(relay);
    outbox.drop().await;
}
