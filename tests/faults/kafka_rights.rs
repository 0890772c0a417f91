//! Rights that Kafka takes away and gives again, by its own authorizer.

use std::time::Duration;

use crate::support::kafka_server::{KafkaServer, Settings};
use crate::support::outbox::Outbox;
use crate::support::wait::wait_until;
use crate::support::writers::{Load, Writers};

const STALLED: Duration = Duration::from_secs(30);
/// A hold is probed at least every 10 s, and the relay looks whether one is due every 0.5 s.
const RESUMED_WITHIN: Duration = Duration::from_secs(15);
const USER: &str = "relay";

async fn with_users() -> KafkaServer {
    KafkaServer::start_with(Settings { users: vec![USER], ..Settings::default() }).await
}

/// An outbox with two topics, as the relay's user reaches them.
async fn outbox(kafka: &KafkaServer, test: &str) -> (Outbox, Vec<String>) {
    let mut outbox = Outbox::on(&kafka.cluster(), test).await;
    outbox.create_topic("order", 3).await;
    outbox.create_topic("other", 3).await;
    let keys = [outbox.add_aggregates("order", 50).await, outbox.add_aggregates("other", 50).await].concat();
    (outbox, keys)
}

/// `what` is --add or --remove.
async fn rights(kafka: &KafkaServer, what: &str, topic: &str, operations: &[&str]) {
    let user = format!("User:{USER}");
    let mut arguments = vec![what, "--allow-principal", &user, "--topic", topic];
    operations.iter().for_each(|operation| arguments.extend(["--operation", operation]));
    if what == "--remove" {
        arguments.push("--force");
    }
    kafka.run_tool("org.apache.kafka.tools.AclCommand", &arguments).await;
}

/// As the relay's user; the test itself may do everything.
fn relay(kafka: &KafkaServer, outbox: &Outbox) -> crate::support::relay::Relay {
    let user = kafka.cluster_as(USER);
    user.properties.iter().fold(outbox.relay(), |relay, (name, value)| relay.set_kafka_property(name, value))
}

fn in_flow() -> Load {
    Load { writers: 2, pause: Duration::from_millis(20), ..Load::default() }
}

async fn wait_until_held(outbox: &Outbox) {
    let held = [(outbox.topic("order"), "topic-authorization".to_owned())];
    wait_until("the forbidden topic is held", STALLED, async || outbox.holds().await == held).await;
}

/// The forbidden topic's rows wait, the others flow.
async fn assert_only_its_rows_wait(outbox: &Outbox) {
    wait_until("more rows wait", STALLED, async || outbox.unsent_of("order").await > 1_000).await;
    let waits = outbox.unsent_of("order").await;
    wait_until("the others flow", STALLED, async || outbox.unsent_of("other").await < 200).await;
    outbox.wait_until_settled(1_000, STALLED).await;
    assert!(outbox.unsent_of("order").await >= waits);
}

#[tokio::test]
async fn a_right_revoked_and_granted_again_holds_back_one_topic_and_loses_nothing() {
    let kafka = with_users().await;
    let (outbox, keys) = outbox(&kafka, "revoked").await;
    let order = outbox.topic("order");
    for topic in outbox.topics() {
        rights(&kafka, "--add", &topic, &["Write", "Describe"]).await;
    }
    let mut relay = relay(&kafka, &outbox).start().await;
    let writers = Writers::start(&outbox, &keys, in_flow()).await;
    outbox.wait_until_settled(2_000, STALLED).await;
    rights(&kafka, "--remove", &order, &["Write", "Describe"]).await;
    wait_until_held(&outbox).await;
    assert_only_its_rows_wait(&outbox).await;
    writers.stop().await;
    let waited = outbox.unsent_of("order").await;
    rights(&kafka, "--add", &order, &["Write", "Describe"]).await;
    let resumed = outbox.wait_until_sent("order", STALLED).await;
    assert!(relay.stop().await.success());
    let report = outbox.check().await;
    let dead = outbox.dead_letters().await;
    print!("{waited} rows waited, sent {resumed:.1?} after the grant, dead letters {dead}: {report}");
    assert!(resumed < RESUMED_WITHIN, "{resumed:?}");
    report.assert_sound();
    assert_eq!(dead, 0);
    outbox.drop_database().await;
}

/// What a look at the topic does not show: the hold stays until a row was really written.
#[tokio::test]
async fn a_topic_that_may_be_described_and_not_written_is_held_and_disturbs_nobody() {
    let kafka = with_users().await;
    let (outbox, keys) = outbox(&kafka, "described").await;
    rights(&kafka, "--add", &outbox.topic("order"), &["Describe"]).await;
    rights(&kafka, "--add", &outbox.topic("other"), &["Write", "Describe"]).await;
    let mut relay = relay(&kafka, &outbox).start().await;
    let writers = Writers::start(&outbox, &keys, in_flow()).await;
    wait_until_held(&outbox).await;
    let ended = |log: String| log.matches("a session ended").count();
    let before = ended(relay.log());
    let probes = "SELECT coalesce(max(probes), 0)::bigint FROM app.outbox_hold";
    wait_until("the topic was probed 3 times", STALLED, async || {
        assert_eq!(outbox.holds().await.len(), 1, "the hold stays");
        outbox.count(probes).await >= 3
    })
    .await;
    assert_only_its_rows_wait(&outbox).await;
    let sessions = ended(relay.log()) - before;
    writers.stop().await;
    let waited = outbox.unsent_of("order").await;
    rights(&kafka, "--add", &outbox.topic("order"), &["Write"]).await;
    let resumed = outbox.wait_until_sent("order", STALLED).await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    let (order, other) = (outbox.check_of("order").await, outbox.check_of("other").await);
    let dead = outbox.dead_letters().await;
    print!(
        "{sessions} sessions ended while it was held; {waited} rows waited, sent {resumed:.1?} after the grant, "
    );
    print!("dead letters {dead}: {order}the other topic: {other}");
    assert!(resumed < RESUMED_WITHIN, "{resumed:?}");
    assert_eq!(sessions, 0, "a probe is nobody else's business");
    order.assert_sound();
    other.assert_sound();
    assert_eq!(dead, 0);
    outbox.drop_database().await;
}
