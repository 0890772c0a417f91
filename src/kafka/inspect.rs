//! What the brokers say of a topic and its settings. Nothing is produced, and no topic is made.

use super::cluster::{KafkaCluster, client_config};
use super::failure::{failure, reason};
use super::polled::PolledProducer;
use super::producer::METADATA_TIMEOUT;
use crate::config;
use crate::relay::failure::Failure;
use crate::relay::reason::UNKNOWN_TOPIC;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::metadata::{Metadata, MetadataBroker, MetadataPartition, MetadataTopic};
use rdkafka::producer::Producer as _;
use std::time::Duration;

const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// A topic, as the brokers describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    /// How many replicas the partition has that has fewest.
    pub replicas: usize,
    /// How many replicas are in sync where fewest are; 0 where a partition has no leader.
    pub in_sync: usize,
    /// Or why they are not known.
    pub settings: Result<Settings, Unseen>,
}

/// Those of a topic's settings that decide whether events get in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// `min.insync.replicas`
    pub min_insync: usize,
    /// `max.message.bytes`
    pub request_bytes_max: i64,
}

/// Why a topic's settings are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unseen {
    /// The brokers do not tell them to this user.
    Hidden,
    /// The client library cannot ask for them when it logs in with a token.
    Unasked,
}

/// Asks about topics. Its threads end with it.
pub(crate) struct Inspector {
    /// Knows what topics there are, and logs in whatever it takes.
    producer: PolledProducer,
    /// Knows their settings. It cannot log in with a token: rdkafka takes none of its events but its own answers.
    admin: Option<AdminClient<DefaultClientContext>>,
}

impl Inspector {
    /// Clients of this cluster, which connect in the background.
    pub(crate) async fn new(settings: &config::Kafka, cluster: &KafkaCluster) -> Result<Inspector, Failure> {
        let (producer, ..) = cluster.connect().await?;
        let admin = match settings.oauth {
            Some(_) => None,
            None => {
                let created = client_config(settings)?.create();
                Some(created.map_err(|error| failure("creating a client", &error))?)
            }
        };
        Ok(Inspector { producer, admin })
    }

    /// What the brokers say of this topic.
    pub(crate) async fn describe(&self, topic: &str) -> Result<Described, Failure> {
        let what = format!("looking topic {topic} up");
        let (producer, name) = (self.producer.share(), topic.to_owned());
        let fetched = tokio::task::spawn_blocking(move || {
            producer.client().fetch_metadata(Some(&name), METADATA_TIMEOUT)
        });
        let metadata = match fetched.await {
            Ok(Ok(metadata)) => metadata,
            Ok(Err(error)) => return Err(failure(&what, &error)),
            Err(error) => return Err(Failure::unknown(format!("{what}: {error}"))),
        };
        let (replicas, in_sync) = partitions(&metadata, topic)?;
        let broker = metadata.brokers().first().map(MetadataBroker::id);
        Ok(Described { replicas, in_sync, settings: self.settings(topic, broker).await })
    }

    async fn settings(&self, topic: &str, broker: Option<i32>) -> Result<Settings, Unseen> {
        let Some(admin) = &self.admin else { return Err(Unseen::Unasked) };
        // Any broker knows them; left alone, librdkafka would wait for the controller.
        let options = AdminOptions::new().request_timeout(Some(ASK_TIMEOUT)).broker_id(broker);
        let answer = admin.describe_configs([&ResourceSpecifier::Topic(topic)], &options).await;
        let resource = answer.ok().and_then(|answer| answer.into_iter().next()?.ok());
        resource.as_ref().and_then(Settings::of).ok_or(Unseen::Hidden)
    }
}

impl Settings {
    fn of(resource: &ConfigResource) -> Option<Settings> {
        Some(Settings {
            min_insync: value(resource, "min.insync.replicas")?,
            request_bytes_max: value(resource, "max.message.bytes")?,
        })
    }
}

fn value<T: std::str::FromStr>(resource: &ConfigResource, name: &str) -> Option<T> {
    resource.get(name)?.value.as_ref()?.parse().ok()
}

/// The fewest replicas of a partition, and the fewest in sync.
fn partitions(metadata: &Metadata, topic: &str) -> Result<(usize, usize), Failure> {
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    if let Some(code) = found.and_then(MetadataTopic::error) {
        let code = code.into();
        return Err(reason(code).failure(format!("topic {topic}: {code}")));
    }
    let in_sync = |partition: &MetadataPartition| {
        if partition.leader() < 0 { 0 } else { partition.isr().len() }
    };
    let partitions = found.map(MetadataTopic::partitions).unwrap_or_default();
    let replicas = partitions.iter().map(|partition| partition.replicas().len()).min();
    match (replicas, partitions.iter().map(in_sync).min()) {
        (Some(replicas), Some(in_sync)) => Ok((replicas, in_sync)),
        _ => Err(UNKNOWN_TOPIC.failure(format!("topic {topic} has no partitions"))),
    }
}
