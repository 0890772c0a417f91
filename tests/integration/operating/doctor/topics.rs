//! Topics that are missing, forbidden, or have too few replicas.

use super::{EVENT, World};
use crate::support::kafka_server::{KafkaServer, Settings};
use crate::support::outbox::Outbox;
use crate::support::topics::Cluster;
use crate::support::wait::{STALLED, wait_until};

const USER: &str = "relay";

#[tokio::test]
async fn missing_topic_is_found_even_if_all_its_events_are_sent() {
    let mut world = World::new("doctor_topic").await;
    world.sql(EVENT).await;
    let remedy = world.doctor().has("topic-missing", "one of the oldest waiting rows is for this topic");
    let topic = world.outbox.topic("order");
    assert!(remedy.ends_with(&format!("--create --topic {topic}")), "{remedy}");
    world.sql("UPDATE app.outbox SET sent_at = now()").await;
    world.doctor().has("topic-missing", "(reason: unknown-topic)");
    world.outbox.create_topic("order", 1).await;
    world.doctor().has_not("topic-missing");
    world.drop().await;
}

/// Applies the `--add-config` of a remedy, as the tool in it would.
async fn alter(cluster: &Cluster, topic: &str, remedy: &str) {
    let (_, setting) = remedy.split_once("--add-config ").unwrap_or_else(|| panic!("{remedy}"));
    let (name, value) = setting.split_once('=').unwrap();
    cluster.alter(topic, &[(name, value)]).await;
}

#[tokio::test]
async fn topics_that_cannot_survive_the_loss_of_a_broker_are_found() {
    let mut kafka = KafkaServer::start_with(Settings { brokers: 3, ..Settings::default() }).await;
    let mut world = World::of(Outbox::on(&kafka.cluster(), "doctor_replicas").await).await;
    world.sql(EVENT).await;
    world.outbox.create_topic_with("order", 2, &[("min.insync.replicas", "2")]).await;
    assert_eq!(world.doctor().codes(), [""; 0]);
    let (cluster, topic) = (world.outbox.cluster.clone(), world.outbox.topic("order"));

    cluster.alter(&topic, &[("min.insync.replicas", "1")]).await;
    let remedy = world.doctor().has("min-insync-too-low", "is 1, and the topic has 3 replicas");
    alter(&cluster, &topic, &remedy).await;
    assert_eq!(world.doctor().codes(), [""; 0]);

    // Each call replaces all settings of the topic.
    let unclean = [("min.insync.replicas", "2"), ("unclean.leader.election.enable", "true")];
    cluster.alter(&topic, &unclean).await;
    let remedy = world.doctor().has("unclean-leader-election", "unclean.leader.election.enable is true");
    assert!(remedy.contains("--add-config unclean.leader.election.enable=false"), "{remedy}");
    cluster.alter(&topic, &unclean[..1]).await;
    assert_eq!(world.doctor().codes(), [""; 0]);

    cluster.alter(&topic, &[("min.insync.replicas", "3")]).await;
    let found = world.doctor();
    let remedy = found.has("min-insync-too-high", "is 3, and the topic has 3 replicas");
    assert_eq!((found.codes(), found.exit), (vec!["min-insync-too-high"], 1));
    // The finding warns of this.
    kafka.brokers[2].kill();
    wait_until("the partition has fewer in-sync replicas", STALLED, async || {
        world.doctor().codes().contains(&"partition-unavailable")
    })
    .await;
    alter(&cluster, &topic, &remedy).await;
    wait_until("two replicas are enough", STALLED, async || world.doctor().codes().is_empty()).await;
    kafka.restart().await;

    let single = Cluster { replicas: 1, ..cluster };
    single.create(&world.outbox.topic("alone"), 1, &[]).await;
    world.sql(&EVENT.replace("'order'", "'alone'")).await;
    world.doctor().has("replication-factor", "is 1");
    world.drop_database().await;
}

async fn rights(kafka: &KafkaServer, what: &str, topic: &str, operations: &[&str]) {
    let user = format!("User:{USER}");
    let mut arguments = vec![what, "--allow-principal", &user, "--topic", topic];
    operations.iter().for_each(|operation| arguments.extend(["--operation", operation]));
    kafka.run_tool("org.apache.kafka.tools.AclCommand", &arguments).await;
}

#[tokio::test]
async fn topics_that_the_relays_user_may_not_use_or_inspect_are_found() {
    let kafka = KafkaServer::start_with(Settings { users: vec![USER], ..Settings::default() }).await;
    let mut world = World::of(Outbox::on(&kafka.cluster(), "doctor_forbidden").await).await;
    for (name, value) in &kafka.cluster_as(USER).properties {
        world.relay = world.relay.clone().set_kafka_property(name, value);
    }
    world.outbox.create_topic("order", 1).await;
    let topic = world.outbox.topic("order");
    world.sql(EVENT).await;
    world.doctor().has("topic-unusable", "topic-authorization");
    rights(&kafka, "--add", &topic, &["Write", "Describe"]).await;
    wait_until("the topic is visible", STALLED, async || !world.doctor().codes().contains(&"topic-unusable"))
        .await;
    world.doctor().has("topic-settings-hidden", "are not readable");
    rights(&kafka, "--add", &topic, &["DescribeConfigs"]).await;
    wait_until("the settings of the topic are visible", STALLED, async || {
        !world.doctor().codes().contains(&"topic-settings-hidden")
    })
    .await;
    world.drop_database().await;
}
