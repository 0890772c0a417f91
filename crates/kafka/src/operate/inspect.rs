//! Reads a topic's partitions and settings from the brokers. Does not produce and does not create topics.

use crate::client_config::client_config;
use crate::cluster::KafkaCluster;
use crate::errors::failure::{failure, reason};
use crate::options::Kafka;
use crate::publishing::polled::PolledProducer;
use crate::publishing::producer::METADATA_TIMEOUT;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::metadata::{Metadata, MetadataBroker, MetadataPartition, MetadataTopic};
use rdkafka::producer::Producer as _;
use relay::failure::KafkaFailure;
use relay::reason::UNKNOWN_TOPIC;
use std::time::Duration;

const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// A topic, as the brokers describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    /// The smallest number of replicas of a partition.
    pub replicas: usize,
    /// The smallest number of in-sync replicas of a partition; 0 if a partition has no leader.
    pub in_sync: usize,
    pub settings: Result<TopicSettings, Unknown>,
}

/// The settings of a topic that decide whether it accepts events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TopicSettings {
    /// `min.insync.replicas`
    pub min_insync: usize,
    /// `max.message.bytes`
    pub request_bytes_max: i64,
    /// `unclean.leader.election.enable`
    pub unclean_election: bool,
}

/// Why a topic's settings are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// The brokers do not show them to this user.
    Hidden,
    /// The client library cannot read them with token authentication.
    Unsupported,
}

pub struct Inspector {
    /// Reads the metadata, with any kind of authentication.
    producer: PolledProducer,
    /// Reads the settings. It does not support tokens, because rdkafka does not process its token requests.
    admin: Option<AdminClient<DefaultClientContext>>,
}

impl Inspector {
    /// Creates clients of this cluster, which connect in the background.
    pub async fn new(settings: &Kafka, cluster: &KafkaCluster) -> Result<Inspector, KafkaFailure> {
        let (producer, ..) = cluster.connect().await?;
        let admin = if settings.uses_tokens() {
            None
        } else {
            let created = client_config(settings)?.create();
            Some(created.map_err(|error| failure("creating a client", &error))?)
        };
        Ok(Inspector { producer, admin })
    }

    pub(crate) async fn describe(&self, topic: &str) -> Result<Described, KafkaFailure> {
        let what = format!("looking up topic {topic}");
        let (producer, name) = (self.producer.share(), topic.to_owned());
        let fetched = tokio::task::spawn_blocking(move || {
            producer.client().fetch_metadata(Some(&name), METADATA_TIMEOUT)
        });
        let metadata = match fetched.await {
            Ok(Ok(metadata)) => metadata,
            Ok(Err(error)) => return Err(failure(&what, &error)),
            Err(error) => return Err(KafkaFailure::unknown(format!("{what}: {error}"))),
        };
        let (replicas, in_sync) = partitions(&metadata, topic)?;
        let broker = metadata.brokers().first().map(MetadataBroker::id);
        Ok(Described { replicas, in_sync, settings: self.settings(topic, broker).await })
    }

    /// Whether Kafka compacts the topic; `None` if its settings are not known.
    pub async fn compacts(&self, topic: &str) -> Option<bool> {
        let options = AdminOptions::new().request_timeout(Some(ASK_TIMEOUT));
        let answer =
            self.admin.as_ref()?.describe_configs([&ResourceSpecifier::Topic(topic)], &options).await;
        let resource = answer.ok()?.into_iter().next()?.ok()?;
        Some(resource.get("cleanup.policy")?.value.as_ref()?.contains("compact"))
    }

    async fn settings(&self, topic: &str, broker: Option<i32>) -> Result<TopicSettings, Unknown> {
        let Some(admin) = &self.admin else { return Err(Unknown::Unsupported) };
        // Any broker knows them. Without a broker ID, librdkafka would wait for the controller.
        let options = AdminOptions::new().request_timeout(Some(ASK_TIMEOUT)).broker_id(broker);
        let answer = admin.describe_configs([&ResourceSpecifier::Topic(topic)], &options).await;
        let resource = answer.ok().and_then(|answer| answer.into_iter().next()?.ok());
        resource.as_ref().and_then(TopicSettings::of).ok_or(Unknown::Hidden)
    }
}

impl TopicSettings {
    fn of(resource: &ConfigResource) -> Option<TopicSettings> {
        Some(TopicSettings {
            min_insync: value(resource, "min.insync.replicas")?,
            request_bytes_max: value(resource, "max.message.bytes")?,
            unclean_election: value(resource, "unclean.leader.election.enable").unwrap_or(false),
        })
    }
}

fn value<T: std::str::FromStr>(resource: &ConfigResource, name: &str) -> Option<T> {
    resource.get(name)?.value.as_ref()?.parse().ok()
}

/// The smallest numbers of replicas and of in-sync replicas of a partition.
fn partitions(metadata: &Metadata, topic: &str) -> Result<(usize, usize), KafkaFailure> {
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
