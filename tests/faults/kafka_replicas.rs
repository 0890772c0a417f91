//! Partitions that the brokers cannot replicate, or have no leader, beside others that work.

use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication};
use std::time::Duration;

use crate::support::kafka_server::{KafkaServer, Settings};
use crate::support::outbox::Outbox;
use crate::support::wait::wait_until;
use crate::support::writers::{Load, Writers};

const STALLED: Duration = Duration::from_secs(60);
/// A hold is probed at least every 10 s, and the relay looks whether one is due every 0.5 s.
const RESUMED_WITHIN: Duration = Duration::from_secs(15);

/// With its only partition on these brokers, all of which have to be there.
async fn create_topic(outbox: &mut Outbox, kind: &str, brokers: &[i32]) {
    let topic = outbox.topic(kind);
    let least = brokers.len().to_string();
    let partition = [brokers];
    let new = NewTopic::new(&topic, 1, TopicReplication::Variable(&partition));
    let new = new.set("min.insync.replicas", &least);
    let answers = outbox.cluster.admin().create_topics([&new], &AdminOptions::new()).await.unwrap();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    wait_until(&format!("{topic} exists"), STALLED, async || outbox.cluster.partitions(&topic) == 1).await;
    outbox.add_topic(kind);
}

#[tokio::test]
async fn a_topic_that_is_stuck_holds_back_only_its_own_rows() {
    let mut kafka = KafkaServer::start_with(Settings { brokers: 2, ..Settings::default() }).await;
    let mut outbox = Outbox::on(&kafka.cluster(), "stuck_topic").await;
    create_topic(&mut outbox, "healthy", &[1]).await;
    create_topic(&mut outbox, "replicated", &[1, 2]).await;
    create_topic(&mut outbox, "leaderless", &[2]).await;
    let mut keys = Vec::new();
    for kind in ["healthy", "replicated", "leaderless"] {
        keys.extend(outbox.add_aggregates(kind, 30).await);
    }
    let relay = outbox.relay().set("relay", "publish_timeout", "6s");
    let mut relay = relay.start().await;
    let load = Load { writers: 2, pause: Duration::from_millis(20), ..Load::default() };
    let writers = Writers::start(&outbox, &keys, load).await;
    outbox.wait_until_settled(2_000, STALLED).await;

    kafka.brokers[1].kill();
    let stuck = ["leaderless", "replicated"].map(|kind| outbox.topic(kind));
    let held = wait_until("both stuck topics are held", STALLED, async || {
        let holds = outbox.holds().await;
        holds.iter().map(|(topic, _)| topic).eq(&stuck)
    })
    .await;
    let holds = outbox.holds().await;
    let waits = outbox.unsent_of("replicated").await;
    wait_until("the healthy topic's rows flow", STALLED, async || outbox.unsent_of("healthy").await < 200)
        .await;
    outbox.wait_until_settled(1_000, STALLED).await;
    println!("held {held:.1?} after the broker went: {holds:?}");
    assert!(outbox.unsent_of("replicated").await >= waits);
    assert_eq!(outbox.holds().await, holds, "held all the time");

    kafka.restart().await;
    writers.stop().await;
    let what = "no topic is held";
    let resumed = wait_until(what, RESUMED_WITHIN, async || outbox.holds().await.is_empty()).await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    let report = outbox.check().await;
    let dead = outbox.dead_letters().await;
    print!("no topic held {resumed:.1?} after the broker came back, dead letters {dead}: {report}");
    report.assert_sound();
    assert_eq!(dead, 0);
    outbox.drop_database().await;
}
