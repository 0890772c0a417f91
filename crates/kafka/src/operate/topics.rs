//! Reads a topic's partitions and settings from the brokers, and creates topics for `init`. The relay itself never creates one.

use crate::client::METADATA_TIMEOUT;
use crate::cluster::KafkaCluster;
use crate::errors::{failure, reason};
use crate::limits::{admin, settings_of, value};
use crate::options::Kafka;
use crate::producer::{KafkaProducer, existing};
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::metadata::{MetadataBroker, MetadataPartition};
use rdkafka::types::RDKafkaErrorCode;
use relay::failure::KafkaFailure;
use relay::reason::{CONFIGURATION, UNKNOWN_TOPIC};
use std::time::Duration;

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
    /// `min.insync.replicas`; `None` on servers that do not have it.
    pub min_insync: Option<usize>,
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
    producer: KafkaProducer,
    /// Reads the settings. It does not support tokens, because rdkafka does not process its token requests.
    admin: Option<AdminClient<DefaultClientContext>>,
}

impl Inspector {
    /// Creates clients of this cluster, which connect in the background.
    pub async fn new(settings: &Kafka, cluster: &KafkaCluster) -> Result<Inspector, KafkaFailure> {
        let producer = cluster.connecting().await?;
        let admin = (!settings.uses_tokens()).then(|| admin(settings)).transpose()?;
        Ok(Inspector { producer, admin })
    }

    pub(crate) async fn describe(&self, topic: &str) -> Result<Described, KafkaFailure> {
        let metadata = self.producer.metadata(topic, METADATA_TIMEOUT).await?;
        let partitions = existing(&metadata, topic)?.partitions();
        let in_sync = |partition: &MetadataPartition| {
            if partition.leader() < 0 { 0 } else { partition.isr().len() }
        };
        let replicas = partitions.iter().map(|partition| partition.replicas().len());
        let broker = metadata.brokers().first().map(MetadataBroker::id);
        Ok(Described {
            replicas: replicas.min().unwrap_or_default(),
            in_sync: partitions.iter().map(in_sync).min().unwrap_or_default(),
            settings: self.settings(topic, broker).await,
        })
    }

    /// Whether Kafka compacts the topic; `None` if its settings are not known.
    pub async fn compacts(&self, topic: &str) -> Option<bool> {
        let settings = settings_of(self.admin.as_ref()?, topic, None, METADATA_TIMEOUT).await.ok()??;
        Some(value::<String>(&settings, "cleanup.policy")?.contains("compact"))
    }

    async fn settings(&self, topic: &str, broker: Option<i32>) -> Result<TopicSettings, Unknown> {
        let Some(admin) = &self.admin else { return Err(Unknown::Unsupported) };
        let settings = settings_of(admin, topic, broker, METADATA_TIMEOUT).await.ok().flatten();
        let read = |settings: &ConfigResource| {
            Some(TopicSettings {
                min_insync: value(settings, "min.insync.replicas"),
                request_bytes_max: value(settings, "max.message.bytes")?,
                unclean_election: value(settings, "unclean.leader.election.enable").unwrap_or(false),
            })
        };
        settings.as_ref().and_then(read).ok_or(Unknown::Hidden)
    }
}

/// How long the brokers may take to create a topic.
const CREATE_TIMEOUT: Duration = Duration::from_secs(30);
/// The brokers choose the replication factor.
const OF_THE_BROKERS: i32 = -1;

/// The number of partitions and of replicas of a new topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub partitions: i32,
    /// The replication factor; `None` for the default of the brokers.
    pub replicas: Option<i32>,
}

/// Whether to create the topic, or only to ask the brokers whether they would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Create,
    Validate,
}

/// Finds and creates topics.
pub struct Topics {
    producer: KafkaProducer,
    admin: AdminClient<DefaultClientContext>,
}

impl Topics {
    /// Creates clients, which connect in the background.
    pub async fn new(settings: &Kafka, cluster: &KafkaCluster) -> Result<Topics, KafkaFailure> {
        if settings.uses_tokens() {
            let error = "the Kafka client library cannot create topics with token authentication";
            return Err(CONFIGURATION.failure(error));
        }
        Ok(Topics { producer: cluster.connecting().await?, admin: admin(settings)? })
    }

    pub async fn has(&self, topic: &str) -> Result<bool, KafkaFailure> {
        let metadata = self.producer.metadata(topic, METADATA_TIMEOUT).await?;
        match existing(&metadata, topic) {
            Ok(_) => Ok(true),
            Err(failure) if failure.reason == UNKNOWN_TOPIC.word => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Creates the topic. Returns false if it exists.
    pub async fn create(&self, topic: &str, shape: Shape, mode: Mode) -> Result<bool, KafkaFailure> {
        let replicas = TopicReplication::Fixed(shape.replicas.unwrap_or(OF_THE_BROKERS));
        let new = NewTopic::new(topic, shape.partitions, replicas);
        let options = AdminOptions::new()
            .request_timeout(Some(CREATE_TIMEOUT))
            .operation_timeout(Some(CREATE_TIMEOUT))
            .validate_only(mode == Mode::Validate);
        let what = format!("creating topic {topic}");
        let answers = self.admin.create_topics([&new], &options).await;
        let answers = answers.map_err(|error| failure(&what, &error))?;
        match answers.into_iter().next() {
            Some(Ok(_)) => Ok(true),
            Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => Ok(false),
            Some(Err((_, code))) => Err(reason(code).failure(format!("{what} failed: {code}"))),
            None => Err(KafkaFailure::unknown(format!("{what}: the brokers did not answer"))),
        }
    }
}
