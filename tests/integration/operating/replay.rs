//! `outbox-relay replay` publishes sent events again: in place, in order, or to another topic.

use rustix::process::Signal;
use serde_json::{Value, json};
use std::path::Path;
use std::time::SystemTime;

use crate::support::command::{Ended, of_program, relay_binary};
use crate::support::consumer::{Record, read_all};
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::wait::{STALLED, wait_until};
use crate::support::writers::{Load, Writers};

const INSERT: &str = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
                      SELECT kind, 'k' || n % 3, 'Placed', ('{\"n\":  ' || n || '}')::json, '{\"trace\": \"a\"}'
                      FROM generate_series(1, 30) AS n, unnest(ARRAY['order', 'invoice']) AS kind
                      ORDER BY n, kind";

/// 30 events of each of two types, published by a relay that has stopped.
async fn delivered(test: &str) -> Outbox {
    let mut outbox = Outbox::create(test, 2).await;
    outbox.create_topic("invoice", 1).await;
    run(&outbox.client, INSERT).await;
    publish(&outbox).await;
    outbox
}

async fn publish(outbox: &Outbox) {
    let mut relay = outbox.start_relay().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
}

fn replay(outbox: &Outbox, args: &[&str]) -> Value {
    let ended = outbox.operator().command(&[&["replay", "--json"], args].concat());
    serde_json::from_str(ended.succeeds()).unwrap()
}

async fn records(outbox: &Outbox, kind: &str) -> Vec<Record> {
    read_all(&[outbox.topic(kind)]).await
}

/// The numbers of the payloads of a key, in the order of its partition.
fn numbers(records: &[Record], key: &str) -> Vec<i64> {
    let of_key = records.iter().filter(|record| record.key.as_deref() == Some(key.as_bytes()));
    let number = |record: &Record| {
        let value: Value = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
        value["n"].as_i64().unwrap()
    };
    of_key.map(number).collect()
}

#[tokio::test]
async fn selected_events_are_published_again_in_order_and_recorded() {
    let outbox = delivered("replay_in_place").await;
    let topic = outbox.topic("order");
    let args = ["--topic", &topic, "--key", "k1", "--since", "1h"];
    let dry = replay(&outbox, &[&args[..], &["--dry-run"]].concat());
    assert_eq!((&dry["events"], &dry["topics"]), (&json!(10), &json!({ &topic: 10 })), "{dry}");
    assert_eq!(outbox.unsent().await, 0);

    let removals = "SELECT removals FROM app.outbox_hold_version";
    let before = outbox.count(removals).await;
    assert_eq!(replay(&outbox, &["--key", "no such key"])["events"], 0);
    assert_eq!(outbox.count(removals).await, before, "nothing was replayed, so the marks stay valid");
    let done = replay(&outbox, &[&args[..], &["--reason", "a test"]].concat());
    assert_eq!((&done["events"], &done["topics"]), (&dry["events"], &dry["topics"]), "{done}");
    assert_eq!(outbox.unsent().await, 10);
    assert_eq!(outbox.count(removals).await, before + 1, "the marks of the relays must become invalid");
    publish(&outbox).await;

    let records = records(&outbox, "order").await;
    let once = (1..=30).filter(|n| n % 3 == 1);
    assert_eq!(numbers(&records, "k1"), once.clone().chain(once).collect::<Vec<_>>());
    assert_eq!(records.len(), 40);
    let acts = format!(
        "SELECT count(*) FROM app.outbox_act AS a JOIN app.outbox AS o ON a.outbox_id = o.id AND a.event_id = o.event_id
         WHERE act = 'replay' AND a.aggregate_type = 'order' AND topic = '{topic}' AND reason = 'a test'"
    );
    assert_eq!(outbox.count(&acts).await, 10);
    assert!(
        outbox.operator().command(&["dead-letters", "history"]).succeeds().contains("  replay  outbox row ")
    );

    let verified = outbox.operator().command(&["verify", "--json"]);
    let report: Value = serde_json::from_str(verified.succeeds()).unwrap();
    assert_eq!(
        (&report["duplicates"], &report["not_judged"]["replayed"]),
        (&json!(0), &json!(10)),
        "{report:#}"
    );
    outbox.drop().await;
}

#[tokio::test]
async fn interrupted_replay_continues_without_the_events_of_the_first_run() {
    let outbox = delivered("replay_continued").await;
    let first = replay(&outbox, &["--all", "--limit", "25"]);
    assert_eq!(first["events"], 25);
    publish(&outbox).await;
    let sent_before = first["sent_before"].as_str().unwrap();
    assert_eq!(replay(&outbox, &["--all", "--sent-before", sent_before])["events"], 35);
    publish(&outbox).await;
    assert_eq!(replay(&outbox, &["--all", "--sent-before", sent_before])["events"], 0);
    assert_eq!(records(&outbox, "order").await.len() + records(&outbox, "invoice").await.len(), 120);
    outbox.drop().await;
}

/// The command that an interrupted replay prints has absolute times, and publishes each of the remaining events once.
#[tokio::test]
async fn interrupted_replay_prints_the_command_for_the_remaining_events() {
    let outbox = delivered("replay_interrupted").await;
    let recorded = "SELECT count(*) FROM app.outbox_act WHERE act = 'replay' AND reason = 'it''s a test'";
    let args = ["replay", "--since", "1h", "--limit", "50", "--rate", "10", "--reason", "it's a test"];
    let mut first = outbox.operator().spawn(&args);
    wait_until("a batch is replayed", STALLED, async || outbox.count(recorded).await > 0).await;
    first.signal(Signal::INT);
    assert_eq!(first.ended().await.code(), Some(1));
    let (log, done) = (first.log(), outbox.count(recorded).await);
    assert!((10..50).contains(&done), "{done}: {log}");
    assert!(log.contains(&format!("error: Interrupted. {done} events had been set back to unsent")), "{log}");
    publish(&outbox).await;

    let (announced, rest) = (log.split("run:").nth(1).unwrap(), log.split("run:").nth(2).unwrap());
    let since = |text: &str| text.split(" --since ").nth(1).unwrap()[..27].to_owned();
    assert_eq!(since(announced), since(rest), "{log}");
    assert!(since(rest).starts_with("20") && since(rest).ends_with('Z'), "{log}");
    let line = rest.trim().replacen("outbox-relay", relay_binary().to_str().unwrap(), 1);
    let second =
        Ended::of(of_program(Path::new("sh")).args(["-c", &line.replace("--rate 10", "--rate 1000")]));
    second.succeeds();
    assert_eq!(outbox.count(recorded).await, 50, "{second}");
    let each = "SELECT count(DISTINCT event_id) FROM app.outbox_act WHERE act = 'replay'";
    assert_eq!(outbox.count(each).await, 50);
    outbox.drop().await;
}

#[tokio::test]
async fn replay_that_is_complete_after_a_signal_succeeds() {
    let outbox = delivered("replay_completed").await;
    let other = outbox.database.connect().await;
    run(&other, "BEGIN; SELECT FROM app.outbox WHERE id = 1 FOR UPDATE").await;
    let mut replaying = outbox.operator().spawn(&["replay", "--all", "--limit", "1"]);
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    wait_until("the replay waits for the row", STALLED, async || outbox.count(waiting).await == 1).await;
    replaying.signal(Signal::INT);
    wait_until("the signal has arrived", STALLED, async || replaying.log().contains("signal received")).await;
    run(&other, "COMMIT").await;
    assert!(replaying.ended().await.success(), "{}", replaying.log());
    assert_eq!(outbox.unsent().await, 1);
    outbox.drop().await;
}

#[tokio::test]
async fn running_replay_is_not_reported_as_a_relay() {
    let outbox = delivered("replay_no_relay").await;
    let recorded = "SELECT count(*) FROM app.outbox_act WHERE act = 'replay'";
    let mut replaying = outbox.operator().spawn(&["replay", "--all", "--rate", "1"]);
    wait_until("a batch is replayed", STALLED, async || outbox.count(recorded).await > 0).await;
    let operator = outbox.operator().set("postgres", "application_name", replaying.name.as_str());
    let status: Value = serde_json::from_str(operator.command(&["status", "--json"]).succeeds()).unwrap();
    assert!(replaying.is_running(), "{}", replaying.log());
    let connected = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{} command' AND datname = current_database()",
        replaying.name
    );
    assert_eq!(outbox.count(&connected).await, 1);
    assert_eq!(status["relays"]["connections"], 0, "{status:#}");
    assert_eq!(status["verdict"]["state"], "not-relaying", "{status:#}");
    replaying.kill();
    outbox.drop().await;
}

/// Another operator replays an event, and a relay publishes it again, before this replay reaches it.
#[tokio::test]
async fn event_that_was_published_again_in_the_meantime_is_left_alone() {
    let outbox = delivered("replay_overtaken").await;
    let other = outbox.database.connect().await;
    run(&other, "BEGIN; UPDATE app.outbox SET sent_at = clock_timestamp() + interval '1 hour' WHERE id = 7")
        .await;
    let mut replaying = outbox.operator().spawn(&["replay", "--all"]);
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    wait_until("the replay waits for the row", STALLED, async || outbox.count(waiting).await == 1).await;
    run(&other, "COMMIT").await;
    assert!(replaying.ended().await.success(), "{}", replaying.log());
    assert_eq!(outbox.unsent().await, 59);
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox_act WHERE outbox_id = 7").await, 0);
    outbox.drop().await;
}

#[tokio::test]
async fn each_filter_selects_and_unsent_events_are_left_alone() {
    let outbox = delivered("replay_filters").await;
    run(
        &outbox.client,
        "UPDATE app.outbox SET sent_at = now() - interval '2 hours' WHERE id <= 4;
         UPDATE app.outbox SET created_at = now() - interval '3 hours' WHERE id <= 6;
         UPDATE app.outbox SET sent_at = NULL WHERE id = 60",
    )
    .await;
    let event: uuid::Uuid =
        outbox.client.query_one("SELECT event_id FROM app.outbox WHERE id = 7", &[]).await.unwrap().get(0);
    let count = |args: &[&str]| replay(&outbox, &[args, &["--dry-run"]].concat())["events"].as_i64().unwrap();
    assert_eq!(count(&["--all"]), 59);
    assert_eq!(count(&["--since", "1h"]), 55);
    assert_eq!(count(&["--until", "1h"]), 4);
    assert_eq!(count(&["--created", "--until", "1h"]), 6);
    assert_eq!(count(&["--created", "--since", "4h", "--until", "1h"]), 6);
    assert_eq!(count(&["--topic", &outbox.topic("invoice"), "--until", "1h"]), 2);
    assert_eq!(count(&["--key", "k1", "--until", "1h"]), 2);
    assert_eq!(count(&["--event-id", &event.to_string()]), 1);
    assert_eq!(count(&["--topic", "no-such-topic"]), 0);

    let fails = |args: &[&str], code, message: &str| {
        outbox.operator().command(&[&["replay"], args].concat()).fails(code, &[message]);
    };
    fails(&[], 2, "No selection");
    fails(&["--all", "--key", "k1"], 2, "--all cannot be combined with a filter");
    fails(&["--since", "1h", "--until", "2h"], 2, "--since must be before --until");
    fails(&["--all", "--rate", "0"], 2, "--rate");
    let deleting = outbox.operator().set("outbox", "on_sent", "delete");
    deleting.command(&["replay", "--all"]).fails(78, &["There are no sent events"]);
    outbox
        .relay()
        .command(&["replay", "--all"])
        .fails(78, &["outbox_record_act", "which only operators have", "_operator\" TO alice"]);
    outbox.drop().await;
}

/// Nothing is published and recorded, even if only a later event belongs to the topic.
#[tokio::test]
async fn unusable_target_topic_is_refused_before_anything_is_published() {
    let outbox = delivered("replay_target").await;
    run(&outbox.client, "UPDATE app.outbox SET aggregate_type = 'invoice' WHERE id <= 20").await;
    let order = outbox.topic("order");
    for (to, message) in [
        (&*order, "cannot be copied to the same topic"),
        ("no-such-topic", "--to-topic: topic no-such-topic"),
        ("no topic", "--to-topic no topic: character"),
    ] {
        for more in [&["--rate", "5"][..], &["--dry-run"]] {
            let args = [&["replay", "--all", "--to-topic", to], more].concat();
            outbox.operator().command(&args).fails(2, &[message]);
        }
    }
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox_act").await, 0);
    assert_eq!(records(&outbox, "order").await.len(), 30);
    outbox.drop().await;
}

#[tokio::test]
async fn events_are_copied_to_another_topic_in_order_without_changing_rows() {
    let outbox = delivered("replay_copy").await;
    let to = outbox.topic("backfill");
    outbox.cluster.create(&to, 3, &[]).await;
    let rows = "SELECT count(*) FROM app.outbox WHERE sent_at IS NOT NULL AND xmax = 0";
    let latest = async || {
        let row = outbox.client.query_one("SELECT max(sent_at) FROM app.outbox", &[]).await.unwrap();
        row.get::<_, SystemTime>(0)
    };
    let (before, sent_at) = (outbox.count(rows).await, latest().await);
    let topic = outbox.topic("order");
    let done = replay(&outbox, &["--topic", &topic, "--to-topic", &to, "--limit", "29", "--rate", "1000"]);
    assert_eq!((&done["act"], &done["events"]), (&json!("copy"), &json!(29)), "{done}");
    assert_eq!((outbox.count(rows).await, latest().await), (before, sent_at));

    let copies = read_all(std::slice::from_ref(&to)).await;
    assert_eq!(copies.len(), 29);
    let originals = records(&outbox, "order").await;
    for key in ["k0", "k1", "k2"] {
        let expected: Vec<i64> = numbers(&originals, key).into_iter().filter(|n| *n <= 29).collect();
        assert_eq!(numbers(&copies, key), expected, "{key}");
    }
    for copy in &copies {
        let partition = relay::partition::of(copy.key.as_deref().unwrap(), 3);
        assert_eq!(copy.partition, partition as i32, "the partition that the relay chooses for the key");
        let original = originals.iter().find(|record| record.event_id() == copy.event_id()).unwrap();
        assert_eq!(
            (&copy.key, &copy.value, &copy.headers),
            (&original.key, &original.value, &original.headers)
        );
    }
    let acts = format!("SELECT count(*) FROM app.outbox_act WHERE act = 'copy' AND topic = '{to}'");
    assert_eq!(outbox.count(&acts).await, 29);
    outbox.cluster.delete(&to).await;
    outbox.drop().await;
}

/// Paused while the events are set back to unsent, old and new events of a key arrive in order.
#[tokio::test]
async fn replay_of_a_paused_topic_precedes_new_events_of_its_keys() {
    let outbox = delivered("replay_paused").await;
    let mut relay = outbox.start_relay().await;
    let topic = outbox.topic("invoice");
    let operator = |args: &[&str]| outbox.operator().command(args).succeeds().to_owned();
    operator(&["pause", "--topic", &topic]);
    run(
        &outbox.client,
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
         SELECT 'invoice', 'k1', 'Placed', ('{\"n\": ' || n || '}')::json FROM generate_series(100, 120) AS n",
    )
    .await;
    operator(&["replay", "--topic", &topic]);
    operator(&["resume", "--topic", &topic]);
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    let of_k1: Vec<i64> = (1..=30).filter(|n| n % 3 == 1).collect();
    let expected: Vec<i64> = [of_k1.clone(), of_k1, (100..=120).collect()].concat();
    assert_eq!(numbers(&records(&outbox, "invoice").await, "k1"), expected);
    outbox.drop().await;
}

/// Two relays under load, while an operator replays everything several times. First occurrences stay in order.
#[tokio::test]
async fn replay_under_load_loses_and_reorders_nothing() {
    let outbox = Outbox::create("replay_load", 6).await;
    let keys = outbox.add_aggregates("order", 50).await;
    let mut relays = [outbox.start_relay().await, outbox.start_relay().await];
    let writers = Writers::start(&outbox, &keys, Load::default()).await;
    for _ in 0..5 {
        outbox.wait_until_settled(1_000, STALLED).await;
        replay(&outbox, &["--all", "--limit", "700", "--rate", "2000"]);
    }
    writers.stop().await;
    outbox.wait_until_drained(STALLED).await;
    for relay in &mut relays {
        assert!(relay.stop().await.success(), "{}", relay.log());
    }
    let report = outbox.check().await;
    report.assert_sound();
    let verified = outbox.operator().command(&["verify", "--json"]);
    let report: Value = serde_json::from_str(verified.succeeds()).unwrap();
    assert_eq!(report["duplicates"], 0, "{report:#}");
    let replayed = outbox.count("SELECT count(*) FROM app.outbox_act WHERE act = 'replay'").await;
    assert_eq!(report["not_judged"]["replayed"], replayed, "{report:#}");
    assert_eq!(replayed, 3_500);
    outbox.drop().await;
}
