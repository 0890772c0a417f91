//! Topics on the real cluster.

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use std::time::Duration;

use super::wait::wait_until;

const WITHIN: Duration = Duration::from_secs(20);

/// The bootstrap server, or a failed test with the command that starts one.
pub fn bootstrap() -> String {
    std::env::var("OUTBOX_RELAY_TEST_KAFKA").unwrap_or_else(|_| {
        panic!(
            "OUTBOX_RELAY_TEST_KAFKA is not set: run `scripts/services up`, then `eval \"$(scripts/services env)\"`"
        )
    })
}

/// Creates a topic with these settings and waits until it has its partitions.
pub async fn create(topic: &str, partitions: i32, settings: &[(&str, &str)]) {
    let mut new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
    for (name, value) in settings {
        new = new.set(name, value);
    }
    let answers = admin().create_topics([&new], &options()).await.unwrap();
    assert!(answers.iter().all(Result::is_ok), "creating {topic}: {answers:?}");
    wait_until(&format!("{topic} exists"), WITHIN, async || self::partitions(topic) == partitions).await;
}

/// Changes one setting of a topic.
pub async fn alter(topic: &str, name: &str, value: &str) {
    let wanted = AlterConfig::new(ResourceSpecifier::Topic(topic)).set(name, value);
    let answers = admin().alter_configs([&wanted], &options()).await.unwrap();
    assert!(answers.iter().all(Result::is_ok), "altering {topic}: {answers:?}");
}

/// Deletes a topic and waits until the cluster has forgotten it.
pub async fn delete(topic: &str) {
    let answers = admin().delete_topics(&[topic], &options()).await.unwrap();
    assert!(answers.iter().all(Result::is_ok), "deleting {topic}: {answers:?}");
    wait_until(&format!("{topic} is gone"), WITHIN, async || partitions(topic) == 0).await;
}

/// How many partitions a topic has; 0 if it does not exist.
pub fn partitions(topic: &str) -> i32 {
    let client: BaseConsumer = client().create().unwrap();
    let metadata = client.fetch_metadata(Some(topic), WITHIN).unwrap();
    let topic = &metadata.topics()[0];
    match topic.error() {
        None => topic.partitions().iter().filter(|partition| partition.leader() >= 0).count() as i32,
        Some(_) => 0,
    }
}

/// How many records a topic holds, as long as none were deleted.
pub fn stored(topic: &str) -> i64 {
    let client: BaseConsumer = client().create().unwrap();
    let end = |partition| client.fetch_watermarks(topic, partition, WITHIN).unwrap().1;
    (0..partitions(topic)).map(end).sum()
}

pub(super) fn client() -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap()).set("allow.auto.create.topics", "false");
    config
}

fn admin() -> AdminClient<DefaultClientContext> {
    client().create().unwrap()
}

fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(WITHIN)).request_timeout(Some(WITHIN))
}
