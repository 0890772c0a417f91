//! Creates topics, for `init`. The relay itself never does.

use crate::client_config::client_config;
use crate::cluster::KafkaCluster;
use crate::errors::failure::{failure, reason};
use crate::operate::inspect::Inspector;
use crate::options::Kafka;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::types::RDKafkaErrorCode;
use relay::failure::KafkaFailure;
use relay::reason::{CONFIGURATION, UNKNOWN_TOPIC};
use std::time::Duration;

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
    inspector: Inspector,
    admin: AdminClient<DefaultClientContext>,
}

impl Topics {
    /// Creates clients, which connect in the background.
    pub async fn new(settings: &Kafka, cluster: &KafkaCluster) -> Result<Topics, KafkaFailure> {
        if settings.uses_tokens() {
            let error = "the Kafka client library cannot create topics with token authentication";
            return Err(CONFIGURATION.failure(error));
        }
        let inspector = Inspector::new(settings, cluster).await?;
        let admin = client_config(settings)?.create();
        let admin = admin.map_err(|error| failure("creating a client", &error))?;
        Ok(Topics { inspector, admin })
    }

    /// Whether the topic exists.
    pub async fn has(&self, topic: &str) -> Result<bool, KafkaFailure> {
        match self.inspector.describe(topic).await {
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
