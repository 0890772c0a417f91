//! Keys that are blocked by a refused event, and the operator who resolves them: with running relays and a real Kafka,
//! and on the database alone.

use serde_json::{Value, json};

use crate::operating::commands::Setup;
use crate::operating::dead_letters::{ids, lines, state};
use crate::support::outbox::Outbox;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::rows::{self, Filling};
use crate::support::topics;
use crate::support::wait::{STALLED, wait_until};

const EVENT: &str = "00000000-0000-0000-0000-00000000000";
/// The waiting rows of `order-7` in `rows::insert` with 20 keys: number 107 is too large, and the rows behind it wait.
const WAITING: &str =
    "SELECT array_agg((payload ->> 'seq')::bigint ORDER BY id) FROM app.outbox WHERE sent_at IS NULL";

fn blocking(outbox: &Outbox) -> Relay {
    outbox.relay().set("outbox", "on_rejected", "block-key")
}

async fn waiting(outbox: &Outbox) -> Vec<i64> {
    let row = outbox.client.query_one(WAITING, &[]).await.unwrap();
    row.get::<_, Option<Vec<i64>>>(0).unwrap_or_default()
}

async fn wait_until_waiting(outbox: &Outbox, expected: &[i64]) {
    wait_until(&format!("only the rows {expected:?} wait"), STALLED, async || {
        waiting(outbox).await == expected
    })
    .await;
}

async fn assert_blocked_and_nothing_dead_lettered(outbox: &Outbox) {
    let blocked = "SELECT count(*) FROM app.outbox_blocked_key AS b JOIN app.outbox AS o ON o.id = b.outbox_id
                   WHERE o.sent_at IS NULL AND (b.event_id, b.aggregate_type, b.aggregate_id, b.reason)
                       = (o.event_id, 'order', 'order-7', 'record-too-large') AND o.payload ->> 'seq' = '107'";
    assert_eq!(outbox.count(blocked).await, 1);
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox_blocked_key").await, 1);
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox_dead_letter").await, 0);
}

/// A row of 100 kB in the middle of its key, in a topic for records of up to 20 kB, and a relay that blocks keys.
async fn with_a_blocked_key(test: &str) -> (Outbox, RelayProcess) {
    let mut outbox = Outbox::without_topics(test).await;
    outbox.create_topic_with("order", 1, &[("max.message.bytes", "20000")]).await;
    rows::insert(&outbox, "order", 20, 0..100, Filling::Random(460)).await;
    rows::insert(&outbox, "order", 20, 107..108, Filling::Random(100_000)).await;
    rows::insert(&outbox, "order", 20, 120..200, Filling::Random(460)).await;
    let relay = blocking(&outbox).start().await;
    wait_until_waiting(&outbox, &[107, 127, 147, 167, 187]).await;
    assert_blocked_and_nothing_dead_lettered(&outbox).await;
    // Later rows are published, except those of this key.
    rows::insert(&outbox, "order", 20, 200..220, Filling::Random(460)).await;
    wait_until_waiting(&outbox, &[107, 127, 147, 167, 187, 207]).await;
    assert_blocked_and_nothing_dead_lettered(&outbox).await;
    assert_eq!(verdicts(&relay), 1, "the row is not retried");
    (outbox, relay)
}

/// How many times a relay has rejected a row that blocks its key.
fn verdicts(relay: &RelayProcess) -> usize {
    relay.log().matches("key blocked").count()
}

async fn acts(outbox: &Outbox) -> Vec<(String, String, Option<i64>)> {
    let sql = "SELECT act, role, dead_letter_id FROM app.outbox_act ORDER BY id";
    let rows = outbox.client.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

#[tokio::test]
async fn blocked_key_waits_alone_and_a_retry_delivers_it_in_order() {
    let (outbox, mut relay) = with_a_blocked_key("block_retry").await;
    let status = outbox.operator().command(&["status"]);
    for part in [
        "blocked keys  1;",
        "key order-7",
        "record-too-large since 20",
        "raise the topic's max.message.bytes",
    ] {
        assert!(status.succeeds().contains(part), "{part}: {status}");
    }
    // Nothing has changed, so the row is refused again and the key blocked again.
    let retry = || outbox.operator().command(&["blocked-keys", "retry", "--key", "order-7"]);
    let first = "SELECT xmin::text::bigint FROM app.outbox_blocked_key";
    let before = outbox.count(first).await;
    assert_eq!(retry().succeeds(), "app.outbox: 1 rejected event will be retried\n");
    wait_until("the key is blocked again", STALLED, async || {
        let row = outbox.client.query_opt(first, &[]).await.unwrap();
        row.is_some_and(|row| row.get::<_, i64>(0) != before)
    })
    .await;
    assert_blocked_and_nothing_dead_lettered(&outbox).await;
    // The line is logged just after the commit.
    wait_until("the second verdict is logged", STALLED, async || verdicts(&relay) >= 2).await;
    assert_eq!(verdicts(&relay), 2);

    topics::alter(&outbox.topic("order"), "max.message.bytes", "1000000").await;
    assert_eq!(retry().succeeds(), "app.outbox: 1 rejected event will be retried\n");
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    let report = outbox.check().await;
    println!("{report}");
    report.assert_sound();
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox_blocked_key").await, 0);
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox_dead_letter").await, 0);
    let retried = ("retry".to_owned(), outbox.roles.on_call(), None);
    assert_eq!(acts(&outbox).await, [retried.clone(), retried]);
    outbox.drop().await;
}

#[tokio::test]
async fn blocked_key_continues_in_order_after_its_event_is_dead_lettered() {
    let (outbox, mut relay) = with_a_blocked_key("block_dead").await;
    // As with an old pooler.
    let operator = outbox.operator().set("postgres", "prepared_statements", false);
    let done = operator.command(&["blocked-keys", "dead-letter", "--topic", &outbox.topic("order")]);
    assert_eq!(done.succeeds(), "app.outbox: 1 rejected event moved to the dead letters\n");
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    let report = outbox.check().await;
    println!("{report}");
    assert_eq!((report.lost.len(), report.lost[0].seq), (1, 107), "{report}");
    assert!(
        report.reordered.is_empty() && report.phantom.is_empty() && report.altered.is_empty(),
        "{report}"
    );
    let whole = "SELECT count(*) FROM app.outbox_dead_letter AS d JOIN app.ledger AS l USING (event_id)
                 WHERE d.payload = convert_to(l.value, 'UTF8') AND l.seq = 107 AND d.reason = 'record-too-large'";
    assert_eq!(outbox.count(whole).await, 1, "the dead letter is whole");
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox_blocked_key").await, 0);
    let id = outbox.count("SELECT id FROM app.outbox_dead_letter").await;
    assert_eq!(acts(&outbox).await, [("dead-letter".to_owned(), outbox.roles.on_call(), Some(id))]);
    outbox.drop().await;
}

#[tokio::test]
async fn block_survives_its_relay_and_applies_to_two_relays() {
    let (outbox, mut relay) = with_a_blocked_key("block_two").await;
    relay.kill();
    let mut relays = [blocking(&outbox).start().await, blocking(&outbox).start().await];
    // Enough rows in enough batches to give both relays work.
    for block in 0..10 {
        let first = 220 + block * 200;
        rows::insert(&outbox, "order", 20, first..first + 200, Filling::Random(460)).await;
    }
    let of_key_7 = |number: &i64| number % 20 == 7;
    let expected: Vec<i64> = [107].into_iter().chain((120..2220).filter(of_key_7)).collect();
    wait_until_waiting(&outbox, &expected).await;
    assert_blocked_and_nothing_dead_lettered(&outbox).await;
    assert_eq!(relays.each_ref().map(verdicts), [0, 0], "neither relay retries the row");

    topics::alter(&outbox.topic("order"), "max.message.bytes", "1000000").await;
    outbox.operator().command(&["blocked-keys", "retry", "--all"]).succeeds();
    outbox.wait_until_drained(STALLED).await;
    for relay in &mut relays {
        assert!(relay.stop().await.success(), "{}", relay.log());
    }
    let report = outbox.check().await;
    println!("{report}");
    report.assert_sound();
    outbox.drop().await;
}

/// The triggers of holds and blocks update the same row. A settlement that locked this row first, and then waited for a topic that
/// another relay is about to hold, would deadlock with that relay.
#[tokio::test]
async fn settlement_that_waits_for_a_hold_of_another_relay_does_not_delay_it() {
    let mut outbox = Outbox::without_topics("block_and_hold").await;
    outbox.create_topic_with("order", 1, &[("max.message.bytes", "20000")]).await;
    rows::insert(&outbox, "order", 1, 0..1, Filling::Random(100_000)).await;
    rows::insert(&outbox, "missing", 1, 1..2, Filling::Random(460)).await;
    let mut other = outbox.database.connect().await;
    let pid: i32 = other.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let transaction = other.transaction().await.unwrap();
    let hold = |topic: String| {
        format!(
            "INSERT INTO app.outbox_hold (topic, reason, error, probe_at)
             VALUES ('{topic}', 'unknown-topic', 'of another relay', now())"
        )
    };
    // As another relay that has inserted its hold, and whose trigger has not begun.
    let settings = "SET LOCAL deadlock_timeout = '10ms'; SET LOCAL session_replication_role";
    let first = hold(outbox.topic("missing"));
    transaction.batch_execute(&format!("{settings} = replica; {first}; {settings} = origin")).await.unwrap();
    let mut relay = blocking(&outbox).set("relay", "workers", 1).start().await;
    let waits = format!("SELECT count(*) FROM pg_stat_activity WHERE {pid} = ANY (pg_blocking_pids(pid))");
    wait_until("a settlement waits for the hold", STALLED, async || outbox.count(&waits).await > 0).await;
    transaction.batch_execute(&hold(outbox.topic("another"))).await.unwrap();
    transaction.rollback().await.unwrap();
    let settled = "SELECT count(*) FROM app.outbox_hold, app.outbox_blocked_key";
    wait_until("the batch is settled", STALLED, async || outbox.count(settled).await == 1).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    outbox.drop().await;
}

/// Five blocks: 1 to 3 of topic `events.order`, 4 and 5 of `events.user`. Those with an even id are an hour old. The
/// event of block 3 was deleted manually, and that of block 5 was marked as sent. The row with the id of block 2 is
/// another event.
async fn filled(test: &str) -> Setup {
    let setup = Setup::migrated(test).await;
    setup
        .sql(&format!(
            "INSERT INTO app.outbox (event_id, aggregate_type, aggregate_id, event_type, payload, headers, sent_at)
             SELECT ('{EVENT}' || CASE WHEN n = 2 THEN 9 ELSE n END)::uuid, CASE WHEN n <= 3 THEN 'order' ELSE 'user' END,
                    'key-' || n, 'Placed', '{{\"secret\":  \"payload\"}}', '{{\"h\": \"v\"}}', CASE WHEN n = 5 THEN now() END
             FROM generate_series(1, 5) AS n;
             INSERT INTO app.outbox_blocked_key (aggregate_type, aggregate_id, outbox_id, event_id, topic, reason, error,
                                                 blocked_at)
             SELECT aggregate_type, aggregate_id, id, ('{EVENT}' || id)::uuid, 'events.' || aggregate_type,
                    CASE WHEN id = 4 THEN 'invalid-headers' ELSE 'record-too-large' END, 'the error',
                    CASE WHEN id % 2 = 0 THEN now() - interval '1 hour' ELSE now() END
             FROM app.outbox;
             DELETE FROM app.outbox WHERE id = 3"
        ))
        .await;
    setup
}

#[tokio::test]
async fn filters_select_blocked_keys_and_a_dry_run_changes_nothing() {
    let setup = filled("blocks_filters").await;
    let event = format!("{EVENT}5");
    let cases: [(&[&str], &[i64]); 9] = [
        (&["--topic", "events.order"], &[3, 2, 1]),
        (&["--key", "key-4"], &[4]),
        (&["--reason", "invalid-headers"], &[4]),
        (&["--older-than", "30m"], &[4, 2]),
        (&["--newer-than", "30m"], &[5, 3, 1]),
        (&["--id", "2,5"], &[5, 2]),
        (&["--event-id", &event], &[5]),
        (&["--topic", "events.user", "--older-than", "30m"], &[4]),
        (&["--id", "77"], &[]),
    ];
    let before = state(&setup).await;
    for (filters, expected) in cases {
        let with = |command: &[&str]| setup.relay(&[&["blocked-keys"], command, filters].concat());
        assert_eq!(ids(with(&["list", "--json"]).succeeds()), expected, "{filters:?}");
        let there = expected.iter().filter(|id| [1, 4].contains(*id)).count();
        for command in ["retry", "dead-letter"] {
            let dry = with(&[command, "--dry-run", "--json"]);
            let object: Value = serde_json::from_str(dry.succeeds()).unwrap();
            let counts = json!({
                "act": command, "dry_run": true, "blocked_keys": there, "lifted": expected.len() - there,
            });
            assert_eq!(object, counts, "{filters:?}");
        }
    }
    let dry = setup.relay(&["blocked-keys", "retry", "--all", "--dry-run", "--limit", "3"]);
    let lines: Vec<&str> = dry.succeeds().lines().collect();
    assert_eq!(lines.len(), 4, "{dry}");
    assert!(
        lines[0].starts_with("1  20") && lines[0].ends_with(&format!("key key-1  event {EVENT}1")),
        "{dry}"
    );
    assert!(lines[1].contains("event gone") && lines[2].contains("event gone"), "{dry}");
    let said = "app.outbox: 1 rejected event would be retried; 2 keys would be unblocked because the event no longer exists";
    assert_eq!(lines[3], said, "{dry}");
    assert_eq!(state(&setup).await, before);
    setup.drop(&[]).await;
}

#[tokio::test]
async fn list_shows_missing_events_and_never_their_content() {
    let setup = filled("blocks_list").await;
    let list = lines(setup.relay(&["blocked-keys", "list", "--json"]).succeeds());
    let gone: Vec<(i64, bool)> = list
        .iter()
        .map(|line| (line["id"].as_i64().unwrap(), line["event_gone"].as_bool().unwrap()))
        .collect();
    assert_eq!(gone, [(5, true), (4, false), (3, true), (2, true), (1, false)]);
    let one = &list[4];
    assert!(humantime::parse_rfc3339(one["blocked_at"].as_str().unwrap()).is_ok(), "{one}");
    assert!(one["remedy"].as_str().unwrap().contains("max.message.bytes"), "{one}");
    let expected = json!({
        "id": 1, "event_id": format!("{EVENT}1"), "aggregate_type": "order", "aggregate_id": "key-1",
        "topic": "events.order", "reason": "record-too-large", "error": "the error", "blocked_at": one["blocked_at"],
        "event_gone": false, "remedy": one["remedy"],
    });
    assert_eq!(*one, expected);
    let text = setup.relay(&["blocked-keys", "list", "--limit", "2"]);
    assert_eq!(text.succeeds().lines().count(), 2, "{text}");
    assert!(
        text.stdout.lines().next().unwrap().ends_with("gone (marked as sent or deleted manually)"),
        "{text}"
    );
    assert!(text.stderr.contains("the newest 2"), "{text}");
    assert!(!text.stdout.contains("secret"), "{text}");

    let status: Value = serde_json::from_str(setup.relay(&["status", "--json"]).succeeds()).unwrap();
    let blocked = &status["blocked_keys"];
    assert_eq!((&blocked["keys"], &blocked["at_least"]), (&json!(5), &json!(false)), "{status}");
    let oldest = &blocked["oldest"][0];
    assert_eq!(
        (&oldest["topic"], &oldest["key"], &oldest["outbox_id"]),
        (&json!("events.order"), &json!("key-1"), &json!(1))
    );
    assert_eq!((&oldest["reason"], oldest["remedy"].is_string()), (&json!("record-too-large"), true));
    setup.drop(&[]).await;
}

#[tokio::test]
async fn block_whose_event_is_gone_is_removed_by_either_command() {
    for command in ["retry", "dead-letter"] {
        let setup = filled(&format!("blocks_{}", command.len())).await;
        let version = "SELECT version FROM app.outbox_hold_version";
        let before = setup.number(version).await;
        let outbox = "SELECT count(*) FROM app.outbox";
        let rows = setup.number(outbox).await;
        let done = setup.relay(&["blocked-keys", command, "--id", "2,3,5"]);
        assert!(done.succeeds().contains(": 0 rejected events"), "{done}");
        assert!(
            done.succeeds().ends_with("; 3 keys unblocked because the event no longer exists\n"),
            "{done}"
        );
        assert_eq!(setup.number(outbox).await, rows, "another event with the id of a missing one is kept");
        assert_eq!(setup.number("SELECT count(*) FROM app.outbox_dead_letter").await, 0);
        assert!(setup.number(version).await > before, "the relays must read the keys again");

        let done = setup.relay(&["blocked-keys", command, "--all", "--json"]);
        let object: Value = serde_json::from_str(done.succeeds()).unwrap();
        assert_eq!(object, json!({"act": command, "dry_run": false, "blocked_keys": 2, "lifted": 0}));
        assert_eq!(setup.number("SELECT count(*) FROM app.outbox_blocked_key").await, 0);
        let history = lines(setup.relay(&["dead-letters", "history", "--json"]).succeeds());
        let acts: Vec<(&str, i64)> = history
            .iter()
            .map(|act| (act["act"].as_str().unwrap(), act["outbox_id"].as_i64().unwrap()))
            .collect();
        assert_eq!(acts, [(command, 4), (command, 1), ("lift", 5), ("lift", 3), ("lift", 2)]);
        let moved = i64::from(command == "dead-letter") * 2;
        assert_eq!(setup.number("SELECT count(*) FROM app.outbox_dead_letter").await, moved);
        assert_eq!(setup.number(outbox).await, rows - moved);
        setup.drop(&[]).await;
    }
}

#[tokio::test]
async fn dead_letters_are_whole_for_each_type_of_payload() {
    for (name, payload, bytes) in [
        ("json", "'{\"b\":  1}'::json", "convert_to(payload::text, 'UTF8')"),
        ("jsonb", "'{\"b\":  1}'::jsonb", "convert_to(payload::text, 'UTF8')"),
        ("text", "' ä'::text", "convert_to(payload, 'UTF8')"),
        ("bytea", "'\\xff00'::bytea", "payload"),
    ] {
        let setup = filled(&format!("blocks_{name}")).await;
        setup
            .sql(&format!(
                "ALTER TABLE app.outbox ALTER payload TYPE {name} USING NULL;
                 UPDATE app.outbox SET payload = {payload} WHERE id = 1;
                 CREATE TABLE app.before AS SELECT *, {bytes} AS bytes FROM app.outbox WHERE id IN (1, 4)"
            ))
            .await;
        setup.relay(&["blocked-keys", "dead-letter", "--all"]).succeeds();
        let whole = "SELECT count(*) FROM app.outbox_dead_letter AS d JOIN app.before AS b ON b.id = d.outbox_id
                     WHERE (b.event_id, b.aggregate_type, b.aggregate_id, b.event_type, b.created_at, b.headers)
                         = (d.event_id, d.aggregate_type, d.aggregate_id, d.event_type, d.created_at, d.headers)
                       AND b.bytes IS NOT DISTINCT FROM d.payload AND d.topic = 'events.' || b.aggregate_type
                       AND d.error = 'the error'";
        assert_eq!(setup.number(whole).await, 2, "{name}");
        setup.drop(&[]).await;
    }
}
