//! Permissions that Kafka's authorizer revokes and grants.

use std::time::Duration;

use crate::support::kafka_server::{KafkaServer, Settings};
use crate::support::outbox::Outbox;
use crate::support::relay::RelayProcess;
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, assert_within, wait_until};
use crate::support::writers::{Load, Writers};

/// A hold is probed at least every 10 s, and the relay checks every 0.5 s whether one is due.
const RESUMED_WITHIN: Duration = Duration::from_secs(15);
const USER: &str = "relay";

/// `what` is --add or --remove.
async fn rights(kafka: &KafkaServer, what: &str, topics: &[String], operations: &[&str]) {
    let user = format!("User:{USER}");
    let mut arguments = vec![what, "--allow-principal", &user];
    topics.iter().for_each(|topic| arguments.extend(["--topic", topic]));
    operations.iter().for_each(|operation| arguments.extend(["--operation", operation]));
    if what == "--remove" {
        arguments.push("--force");
    }
    kafka.run_tool("org.apache.kafka.tools.AclCommand", &arguments).await;
}

/// The rows of the forbidden topic wait, and the others are published.
async fn assert_only_its_rows_wait(outbox: &Outbox) {
    wait_until("more rows wait", STALLED, async || outbox.unsent_of("order").await > 500).await;
    let waits = outbox.unsent_of("order").await;
    wait_until("the other rows are published", STALLED, async || outbox.unsent_of("other").await < 200).await;
    outbox.wait_until_settled(500, STALLED).await;
    assert!(outbox.unsent_of("order").await >= waits);
}

/// Waits until the hold was probed this many more times.
async fn wait_until_probed(outbox: &Outbox, times: i64) {
    const PROBES: &str = "SELECT coalesce(max(probes), 0)::bigint FROM app.outbox_hold";
    let enough = outbox.count(PROBES).await + times;
    wait_until(&format!("{times} more probes"), STALLED, async || {
        assert_eq!(outbox.holds().await.len(), 1, "the hold must stay");
        outbox.count(PROBES).await >= enough
    })
    .await;
}

/// Without DescribeConfigs, the relay learns from refusals how large its requests may be.
#[tokio::test]
async fn requests_that_a_topic_refuses_for_their_size_become_smaller_if_its_limit_cannot_be_read() {
    const ROWS: i64 = 20_000;
    let kafka = KafkaServer::start_with(Settings { users: vec![USER], ..Settings::default() }).await;
    let mut outbox = Outbox::on(&kafka.cluster(), "hidden_limit").await;
    outbox.create_topic_with("order", 3, &[("max.message.bytes", "100000")]).await;
    rights(&kafka, "--add", &outbox.topics(), &["Write", "Describe"]).await;
    rows::insert(&outbox, "order", 1_000, 0..ROWS, Filling::Random(1_000)).await;
    let user = kafka.cluster_as(USER).properties;
    let relay =
        user.iter().fold(outbox.relay(), |relay, (name, value)| relay.set_kafka_property(name, value));
    let mut relay = relay.set_kafka_property("compression.type", "none").start().await;
    let begun = std::time::Instant::now();
    outbox.wait_until_drained(STALLED).await;
    println!("{ROWS} rows in {:.1?}, {} sessions ended", begun.elapsed(), sessions_ended(&relay));
    // From 1 MB to 62 kB, each of the two workers.
    assert!((1..=10).contains(&sessions_ended(&relay)), "{}", relay.log());
    let learned = relay.log().matches("max.message.bytes cannot be read").count();
    assert!((1..=4).contains(&learned), "{learned} lines: {}", relay.log());
    assert!(!relay.log().contains("kafka unavailable"));
    assert!(relay.stop().await.success());
    outbox.check().await.assert_exact();
    assert_eq!(outbox.dead_letters().await, 0);
    outbox.drop_database().await;
}

fn sessions_ended(relay: &RelayProcess) -> usize {
    relay.log().matches("session ended").count()
}

/// Only the write permission is revoked. The topic can still be described, so its metadata shows no problem.
#[tokio::test]
async fn permission_revoked_and_granted_again_delays_one_topic_and_loses_nothing() {
    let kafka = KafkaServer::start_with(Settings { users: vec![USER], ..Settings::default() }).await;
    // The test itself has all permissions.
    let mut outbox = Outbox::on(&kafka.cluster(), "revoked").await;
    outbox.create_topic("order", 3).await;
    outbox.create_topic("other", 3).await;
    let keys = [outbox.add_aggregates("order", 50).await, outbox.add_aggregates("other", 50).await].concat();
    rights(&kafka, "--add", &outbox.topics(), &["Write", "Describe"]).await;
    let order = [outbox.topic("order")];
    let user = kafka.cluster_as(USER).properties;
    let relay =
        user.iter().fold(outbox.relay(), |relay, (name, value)| relay.set_kafka_property(name, value));
    let mut relay = relay.start().await;
    let load = Load { writers: 2, pause: Duration::from_millis(20), ..Load::default() };
    let writers = Writers::start(&outbox, &keys, load).await;
    outbox.wait_until_settled(2_000, STALLED).await;

    rights(&kafka, "--remove", &order, &["Write"]).await;
    let held = [(outbox.topic("order"), "topic-authorization".to_owned())];
    wait_until("the forbidden topic is held", STALLED, async || outbox.holds().await == held).await;
    // Until then, other workers may still get the same refusal.
    wait_until_probed(&outbox, 1).await;
    let before = sessions_ended(&relay);
    wait_until_probed(&outbox, 2).await;
    assert_only_its_rows_wait(&outbox).await;
    rights(&kafka, "--remove", &order, &["Describe"]).await;
    wait_until_probed(&outbox, 2).await;
    assert_only_its_rows_wait(&outbox).await;
    assert_eq!(outbox.holds().await, held);
    let disturbed = sessions_ended(&relay) - before;

    writers.stop().await;
    let waited = outbox.unsent_of("order").await;
    rights(&kafka, "--add", &order, &["Write", "Describe"]).await;
    let resumed = outbox.wait_until_sent("order", STALLED).await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    let (report, dead) = (outbox.check().await, outbox.dead_letters().await);
    println!("{before} sessions ended by the refusal, {disturbed} while the topic was held");
    print!("{waited} rows waited, sent {resumed:.1?} after the grant, dead letters {dead}: {report}");
    assert_eq!(disturbed, 0, "probes must not end sessions");
    assert_within("sent after the grant", resumed, RESUMED_WITHIN);
    report.assert_exact();
    assert_eq!(dead, 0);
    outbox.drop_database().await;
}

/// `replay --to-topic` finds a missing permission with its first record. `verify` cannot read whether a topic is compacted.
#[tokio::test]
async fn operator_commands_with_few_permissions_publish_nothing_and_claim_no_loss() {
    let kafka = KafkaServer::start_with(Settings { users: vec![USER], ..Settings::default() }).await;
    let mut outbox = Outbox::on(&kafka.cluster(), "few_rights").await;
    outbox.create_topic("order", 3).await;
    outbox.create_topic("backfill", 3).await;
    let (order, backfill) = ([outbox.topic("order")], [outbox.topic("backfill")]);
    rows::insert(&outbox, "order", 10, 0..100, Filling::Nothing).await;
    outbox.client.execute("UPDATE app.outbox SET sent_at = now()", &[]).await.unwrap();
    rights(&kafka, "--add", &order, &["Write", "Read", "Describe"]).await;
    let command = |args: &[&str]| {
        let user = kafka.cluster_as(USER).properties;
        let operator =
            user.iter().fold(outbox.operator(), |relay, (name, value)| relay.set_kafka_property(name, value));
        operator.command(args)
    };
    let copy = || command(&["replay", "--all", "--to-topic", &backfill[0]]);
    let denied = "The Kafka user may not publish to topic";
    copy().fails(78, &[denied]);
    rights(&kafka, "--add", &backfill, &["Describe"]).await;
    copy().fails(78, &[denied]);
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox_act").await, 0);
    rights(&kafka, "--add", &backfill, &["Write"]).await;
    assert!(copy().succeeds().contains("100 events published"));

    command(&["verify"]).fails(1, &["lost                100"]);
    kafka.cluster().publish_in_transaction(&order[0], "a key");
    let unknown = "not judged: 100 events: no record, but the topic may be compacted";
    assert!(command(&["verify"]).succeeds().contains(unknown));
    outbox.drop_database().await;
}

/// Brokers refuse a producer id to a user that may not write to any topic, although they answer all other requests.
#[tokio::test]
async fn missing_permission_to_publish_is_one_outage_that_names_the_permission() {
    const ATTEMPTS: usize = 5;
    let kafka = KafkaServer::start_with(Settings { users: vec![USER], ..Settings::default() }).await;
    let mut outbox = Outbox::on(&kafka.cluster(), "no_right").await;
    outbox.create_topic("order", 3).await;
    rights(&kafka, "--add", &outbox.topics(), &["Describe"]).await;
    rows::insert(&outbox, "order", 10, 0..100, Filling::Nothing).await;
    let user = kafka.cluster_as(USER).properties;
    let relay =
        user.iter().fold(outbox.relay(), |relay, (name, value)| relay.set_kafka_property(name, value));
    let mut relay = relay.set("admin", "listen", "127.0.0.1:0").start().await;
    relay.wait_for_log("kafka unavailable, retrying: ").await;
    let attempts = |relay: &RelayProcess| relay.log().matches("kafka still unavailable").count();
    wait_until("the relay has retried", STALLED, async || {
        let why = relay.not_ready().await;
        let why = why.expect("the relay is ready although it cannot publish");
        assert!(why.contains("cluster-authorization") || why.contains("not reached yet"), "{why}");
        assert_eq!(outbox.held_open(&relay).await, 0);
        attempts(&relay) >= ATTEMPTS
    })
    .await;
    let log = relay.log();
    assert_eq!(log.matches("kafka unavailable, retrying: ").count(), 1, "{log}");
    assert_eq!(log.matches("kafka available again").count(), 0, "{log}");
    assert!(log.contains("grant the relay's Kafka user IdempotentWrite on the cluster"), "{log}");

    rights(&kafka, "--add", &outbox.topics(), &["Write"]).await;
    outbox.wait_until_drained(STALLED).await;
    relay.wait_for_log("kafka available again").await;
    wait_until("the relay is ready", STALLED, async || relay.not_ready().await.is_none()).await;
    assert!(relay.stop().await.success());
    assert_eq!(relay.log().matches("kafka available again").count(), 1);
    outbox.check().await.assert_exact();
    outbox.drop_database().await;
}
