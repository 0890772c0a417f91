//! A Kafka broker in this process.
//!
//! It is librdkafka's mock, which implements enough of the protocol for real producers and consumers over real sockets.
//! A partition keeps 5 MiB or 100,000 records and then drops the oldest. Nothing is stored on disk. The tests of the
//! relay's guarantees use a real Kafka instead.

use outbox_relay::kafka::errors::failure::failure;
use outbox_relay::relay::failure::KafkaFailure;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

/// A broker on a free loopback port. Dropping it stops the broker.
pub struct MockBroker {
    cluster: MockCluster<'static, DefaultProducerContext>,
}

impl MockBroker {
    /// Starts a broker with these topics and this number of partitions for each.
    ///
    /// # Errors
    ///
    /// If no port is free, or if a topic cannot have this name or number of partitions.
    pub fn start(topics: &[&str], partitions: i32) -> Result<MockBroker, KafkaFailure> {
        let cluster =
            MockCluster::new(1).map_err(|error| failure("starting a broker in this process", &error))?;
        for topic in topics {
            cluster
                .create_topic(topic, partitions, 1)
                .map_err(|error| failure(&format!("creating the topic {topic}"), &error))?;
        }
        Ok(MockBroker { cluster })
    }

    /// Its address, for `[kafka] bootstrap_servers`.
    pub fn bootstrap_servers(&self) -> String {
        self.cluster.bootstrap_servers()
    }
}
