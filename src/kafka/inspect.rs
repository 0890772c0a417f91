//! What the brokers say of a topic and its settings. Nothing is produced, and no topic is made.

use super::cluster::client_config;
use super::failure::{failure, reason};
use super::producer::METADATA_TIMEOUT;
use crate::config;
use crate::relay::failure::Failure;
use crate::relay::reason::UNKNOWN_TOPIC;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::metadata::{Metadata, MetadataBroker, MetadataPartition, MetadataTopic};
use std::sync::Arc;
use std::time::Duration;

const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// A topic, as the brokers describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// How many replicas the partition has that has fewest.
    pub replicas: usize,
    /// How many replicas are in sync where fewest are; 0 where a partition has no leader.
    pub in_sync: usize,
    /// Nothing if the settings may not be seen.
    pub settings: Option<Settings>,
}

/// Those of a topic's settings that decide whether events get in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `min.insync.replicas`
    pub min_insync: usize,
    /// `max.message.bytes`
    pub request_bytes_max: i64,
}

/// Asks about topics. Its thread ends with it.
pub struct Inspector {
    admin: Arc<AdminClient<DefaultClientContext>>,
}

impl Inspector {
    /// A client of this cluster. It connects in the background.
    pub fn new(settings: &config::Kafka) -> Result<Inspector, Failure> {
        let config = client_config(settings)?;
        let admin = config.create().map_err(|error| failure("creating a client", &error))?;
        Ok(Inspector { admin: Arc::new(admin) })
    }

    /// What the brokers say of this topic.
    pub async fn describe(&self, topic: &str) -> Result<Described, Failure> {
        let what = format!("looking topic {topic} up");
        let (admin, name) = (Arc::clone(&self.admin), topic.to_owned());
        let fetched =
            tokio::task::spawn_blocking(move || admin.inner().fetch_metadata(Some(&name), METADATA_TIMEOUT));
        let metadata = match fetched.await {
            Ok(Ok(metadata)) => metadata,
            Ok(Err(error)) => return Err(failure(&what, &error)),
            Err(error) => return Err(Failure::unknown(format!("{what}: {error}"))),
        };
        let (replicas, in_sync) = partitions(&metadata, topic)?;
        let broker = metadata.brokers().first().map(MetadataBroker::id);
        Ok(Described { replicas, in_sync, settings: self.settings(topic, broker).await })
    }

    /// Any broker knows them; left alone, librdkafka would wait for the controller.
    async fn settings(&self, topic: &str, broker: Option<i32>) -> Option<Settings> {
        let options = AdminOptions::new().request_timeout(Some(ASK_TIMEOUT)).broker_id(broker);
        let answer = self.admin.describe_configs([&ResourceSpecifier::Topic(topic)], &options).await;
        let resource = answer.ok()?.into_iter().next()?.ok()?;
        Some(Settings {
            min_insync: value(&resource, "min.insync.replicas")?,
            request_bytes_max: value(&resource, "max.message.bytes")?,
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
