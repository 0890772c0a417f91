//! Topics, on the shared cluster or on a private one.

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::metadata::MetadataTopic;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use std::collections::HashSet;

use super::wait::{STALLED, wait_until};

/// The bootstrap server of the shared cluster. If it is not set, fails the test with the command that starts a cluster.
pub fn bootstrap() -> String {
    std::env::var("OUTBOX_RELAY_TEST_KAFKA").unwrap_or_else(|_| {
        panic!(
            "OUTBOX_RELAY_TEST_KAFKA is not set: run `scripts/services up`, then `eval \"$(scripts/services env)\"`"
        )
    })
}

/// The class of `kafka-configs.sh`, which Kafka 4.4 has moved.
pub fn config_command() -> &'static str {
    let library = std::env::var("OUTBOX_RELAY_TEST_KAFKA_LIB").unwrap();
    let before = ["4.0.", "4.1.", "4.2.", "4.3."].map(|version| format!("kafka-tools-{version}"));
    let is_before = |name: &str| before.iter().any(|prefix| name.starts_with(prefix));
    let mut files = std::fs::read_dir(library).unwrap().map(|entry| entry.unwrap().file_name());
    let moved = !files.any(|name| is_before(&name.to_string_lossy()));
    if moved { "org.apache.kafka.tools.ConfigCommand" } else { "kafka.admin.ConfigCommand" }
}

/// Creates a topic on the shared cluster with these settings, and waits until it has its partitions.
pub async fn create(topic: &str, partitions: i32, settings: &[(&str, &str)]) {
    Cluster::shared().create(topic, partitions, settings).await;
}

/// Changes a setting of a topic on the shared cluster.
pub async fn alter(topic: &str, name: &str, value: &str) {
    Cluster::shared().alter(topic, &[(name, value)]).await;
}

/// Deletes a topic on the shared cluster, and waits until it is gone.
pub async fn delete(topic: &str) {
    Cluster::shared().delete(topic).await;
}

/// The number of records in a topic of the shared cluster, if none were deleted.
pub fn stored(topic: &str) -> i64 {
    Cluster::shared().stored(topic)
}

/// The address of a cluster. Queries block the thread.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub bootstrap: String,
    /// Additional client properties, such as a user and a password.
    pub properties: Vec<(String, String)>,
    /// The replication factor of new topics.
    pub replicas: i32,
}

impl Cluster {
    /// The cluster that `scripts/services up` started.
    pub fn shared() -> Self {
        Self { bootstrap: bootstrap(), properties: Vec::new(), replicas: 1 }
    }

    /// Creates a topic with these settings and waits until it has its partitions.
    pub async fn create(&self, topic: &str, partitions: i32, settings: &[(&str, &str)]) {
        let mut new = NewTopic::new(topic, partitions, TopicReplication::Fixed(self.replicas));
        for (name, value) in settings {
            new = new.set(name, value);
        }
        let answers = self.admin().create_topics([&new], &options()).await.unwrap();
        assert!(answers.iter().all(Result::is_ok), "creating {topic}: {answers:?}");
        wait_until(&format!("{topic} exists"), STALLED, async || self.partitions(topic) == partitions).await;
    }

    /// Creates many topics with one partition each, and waits until all of them have leaders.
    pub async fn create_many(&self, topics: &[String]) {
        let new: Vec<NewTopic<'_>> = topics
            .iter()
            .map(|topic| NewTopic::new(topic, 1, TopicReplication::Fixed(self.replicas)))
            .collect();
        let answers = self.admin().create_topics(&new, &options()).await.unwrap();
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        let client: BaseConsumer = self.client().create().unwrap();
        wait_until("all new topics have leaders", STALLED, async || {
            let metadata = client.fetch_metadata(None, STALLED).unwrap();
            let led =
                |topic: &&MetadataTopic| topic.partitions().first().is_some_and(|first| first.leader() >= 0);
            let names: HashSet<&str> =
                metadata.topics().iter().filter(led).map(MetadataTopic::name).collect();
            topics.iter().all(|topic| names.contains(topic.as_str()))
        })
        .await;
    }

    /// Deletes many topics without waiting.
    pub async fn delete_many(&self, topics: &[String]) {
        let names: Vec<&str> = topics.iter().map(String::as_str).collect();
        let answers = self.admin().delete_topics(&names, &options()).await.unwrap();
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }

    /// Deletes a topic, and waits until it is gone.
    pub async fn delete(&self, topic: &str) {
        let answers = self.admin().delete_topics(&[topic], &options()).await.unwrap();
        assert!(answers.iter().all(Result::is_ok), "deleting {topic}: {answers:?}");
        wait_until(&format!("{topic} is gone"), STALLED, async || self.partitions(topic) == 0).await;
    }

    /// Sets these settings of a topic, and resets all others to their defaults.
    pub async fn alter(&self, topic: &str, settings: &[(&str, &str)]) {
        let mut altered = AlterConfig::new(ResourceSpecifier::Topic(topic));
        for (name, value) in settings {
            altered = altered.set(name, value);
        }
        let answers = self.admin().alter_configs([&altered], &options()).await.unwrap();
        assert!(answers.iter().all(Result::is_ok), "altering {topic}: {answers:?}");
        // The controller answers before the broker has the change.
        wait_until(&format!("{topic} is altered"), STALLED, async || {
            let topic = [ResourceSpecifier::Topic(topic)];
            let described =
                self.admin().describe_configs(&topic, &options()).await.unwrap().remove(0).unwrap();
            settings.iter().all(|(name, value)| {
                described.get(name).is_some_and(|entry| entry.value.as_deref() == Some(*value))
            })
        })
        .await;
    }

    /// The number of partitions of a topic that have a leader. 0 if the topic does not exist.
    pub fn partitions(&self, topic: &str) -> i32 {
        let client: BaseConsumer = self.client().create().unwrap();
        let metadata = client.fetch_metadata(Some(topic), STALLED).unwrap();
        let topic = &metadata.topics()[0];
        match topic.error() {
            None => topic.partitions().iter().filter(|partition| partition.leader() >= 0).count() as i32,
            Some(_) => 0,
        }
    }

    /// The number of records in a topic, if none were deleted.
    pub fn stored(&self, topic: &str) -> i64 {
        let client: BaseConsumer = self.client().create().unwrap();
        let end = |partition| client.fetch_watermarks(topic, partition, STALLED).unwrap().1;
        (0..self.partitions(topic)).map(end).sum()
    }

    /// Publishes a record with this key to each partition, in a transaction. The end of the transaction takes one more offset,
    /// which has no record.
    pub fn publish_in_transaction(&self, topic: &str, key: &str) {
        let mut config = self.client();
        let producer: BaseProducer = config.set("transactional.id", topic).create().unwrap();
        producer.init_transactions(STALLED).unwrap();
        producer.begin_transaction().unwrap();
        for partition in 0..self.partitions(topic) {
            let record = BaseRecord::to(topic).partition(partition).key(key).payload("{}");
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        producer.commit_transaction(STALLED).unwrap();
    }

    /// The configuration of a client.
    pub fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.bootstrap).set("allow.auto.create.topics", "false");
        for (name, value) in &self.properties {
            config.set(name, value);
        }
        config
    }

    /// A client for other administrative changes.
    pub fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.client().create().unwrap()
    }
}

fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(STALLED)).request_timeout(Some(STALLED))
}
