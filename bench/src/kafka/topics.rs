//! Scratch topics: created, queried and deleted. The relay itself creates and deletes no topics.

use super::consume::{METADATA_TIMEOUT, sum_of_ends};
use outbox_relay::config;
use outbox_relay::kafka::client_config::client_config;
use outbox_relay::kafka::errors::failure::failure;
use outbox_relay::relay::failure::KafkaFailure;
use outbox_relay::relay::reason::CONFIGURATION;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication, TopicResult};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::metadata::MetadataTopic;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::sync::Arc;
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const ROUND_TRIPS: usize = 20;
/// The cluster's own default.
const REPLICAS_DEFAULT: i32 = -1;

/// A client that manages topics.
pub struct Topics {
    admin: AdminClient<DefaultClientContext>,
    /// For requests that the admin client does not support. Its calls block.
    client: Arc<BaseConsumer>,
}

impl Topics {
    /// Creates a client for this cluster. It connects in the background.
    ///
    /// # Errors
    ///
    /// If librdkafka does not accept the settings.
    pub fn new(settings: &config::Kafka) -> Result<Topics, KafkaFailure> {
        if settings.uses_tokens() {
            let error = "the Kafka client library cannot manage topics when it logs in with a token ([kafka.oauth], [kafka.aws])";
            return Err(CONFIGURATION.failure(error));
        }
        let config = client_config(settings)?;
        let creating = |error| failure("creating a client", &error);
        let admin = config.create().map_err(creating)?;
        let mut config = config.clone();
        config.set("group.id", "outbox-bench"); // required by librdkafka; no group is ever joined
        Ok(Topics { admin, client: Arc::new(config.create().map_err(creating)?) })
    }

    /// Creates topics. Returns when the leaders of all partitions answer.
    ///
    /// # Errors
    ///
    /// If the cluster refuses, for example because of a missing permission.
    pub async fn create(&self, names: &[String], partitions: i32) -> Result<(), KafkaFailure> {
        let replicas = || TopicReplication::Fixed(REPLICAS_DEFAULT);
        let new = names.iter().map(|name| NewTopic::new(name, partitions, replicas()));
        let new: Vec<NewTopic<'_>> = new.collect();
        let answers = self.admin.create_topics(&new, &options()).await;
        refusals(answers, "creating a scratch topic", RDKafkaErrorCode::TopicAlreadyExists)?;
        let begun = Instant::now();
        for name in names {
            while self.led(name).await? < partitions {
                if begun.elapsed() > WITHIN {
                    return Err(KafkaFailure::unknown(format!(
                        "topic {name} has no leaders after {WITHIN:?}"
                    )));
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
        // A newly elected leader may not know yet that it is the leader.
        while let Err(failure) = self.ends(names, partitions).await {
            if begun.elapsed() > WITHIN {
                return Err(failure);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }

    /// Deletes topics. A missing topic counts as deleted.
    ///
    /// # Errors
    ///
    /// If the cluster refuses or does not answer.
    pub async fn delete(&self, names: &[String]) -> Result<(), KafkaFailure> {
        if names.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let answers = self.admin.delete_topics(&names, &options()).await;
        refusals(answers, "deleting a scratch topic", RDKafkaErrorCode::UnknownTopicOrPartition)
    }

    /// The names of all topics that this user can see.
    ///
    /// # Errors
    ///
    /// If the cluster does not answer.
    pub async fn names(&self) -> Result<Vec<String>, KafkaFailure> {
        self.blocking(|client| {
            let metadata = client
                .fetch_metadata(None, METADATA_TIMEOUT)
                .map_err(|error| failure("listing the topics", &error))?;
            Ok(metadata.topics().iter().map(|topic| topic.name().to_owned()).collect())
        })
        .await
    }

    /// The number of records that these topics have ever had: the sum of the end offsets of their partitions, with one
    /// request per broker.
    ///
    /// # Errors
    ///
    /// If the cluster does not answer.
    pub async fn ends(&self, topics: &[String], partitions: i32) -> Result<u64, KafkaFailure> {
        const DOING: &str = "asking for the ends of partitions";
        let mut asked = TopicPartitionList::with_capacity(topics.len() * partitions.unsigned_abs() as usize);
        for topic in topics {
            for partition in 0..partitions {
                let added = asked.add_partition_offset(topic, partition, Offset::End);
                added.map_err(|error| failure(DOING, &error))?;
            }
        }
        self.blocking(move |client| {
            let answered = client.offsets_for_times(asked, WITHIN).map_err(|error| failure(DOING, &error))?;
            sum_of_ends(&answered, DOING)
        })
        .await
    }

    /// The median round trip of a request that needs no work on the broker.
    ///
    /// # Errors
    ///
    /// If the cluster does not answer.
    pub async fn round_trip(&self, topic: &str) -> Result<Duration, KafkaFailure> {
        let topic = topic.to_owned();
        self.blocking(move |client| {
            let mut times = Vec::with_capacity(ROUND_TRIPS);
            for _ in 0..ROUND_TRIPS {
                let begun = Instant::now();
                client
                    .fetch_metadata(Some(&topic), METADATA_TIMEOUT)
                    .map_err(|error| failure("measuring the round trip", &error))?;
                times.push(begun.elapsed());
            }
            times.sort_unstable();
            Ok(times[ROUND_TRIPS / 2])
        })
        .await
    }

    /// The number of partitions of the topic that have a leader.
    async fn led(&self, topic: &str) -> Result<i32, KafkaFailure> {
        let name = topic.to_owned();
        self.blocking(move |client| {
            let metadata = client
                .fetch_metadata(Some(&name), METADATA_TIMEOUT)
                .map_err(|error| failure("looking up a scratch topic", &error))?;
            let partitions = metadata.topics().iter().flat_map(MetadataTopic::partitions);
            Ok(partitions.filter(|partition| partition.leader() >= 0).count() as i32)
        })
        .await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&BaseConsumer) -> Result<T, KafkaFailure> + Send + 'static,
    ) -> Result<T, KafkaFailure> {
        let client = Arc::clone(&self.client);
        match tokio::task::spawn_blocking(move || work(&client)).await {
            Ok(done) => done,
            Err(error) => Err(KafkaFailure::unknown(error.to_string())),
        }
    }
}

fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(WITHIN)).request_timeout(Some(WITHIN))
}

/// The first error, except errors with this code.
fn refusals(
    answers: Result<Vec<TopicResult>, rdkafka::error::KafkaError>,
    doing: &str,
    fine: RDKafkaErrorCode,
) -> Result<(), KafkaFailure> {
    for answer in answers.map_err(|error| failure(doing, &error))? {
        match answer {
            Ok(_) => {}
            Err((_, code)) if code == fine => {}
            Err((topic, code)) => {
                return Err(outbox_relay::kafka::errors::failure::reason(code)
                    .failure(format!("{doing} {topic}: {code}")));
            }
        }
    }
    Ok(())
}
