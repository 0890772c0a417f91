//! A Kafka broker inside this process.
//!
//! It is librdkafka's mock: enough of the protocol for real producers and consumers over real sockets. A partition keeps
//! 5 MiB or 100,000 records and then drops the oldest; nothing is stored on disk. The tests of the relay's guarantees use a
//! real Kafka instead.

use outbox_relay::kafka::failure::failure;
use outbox_relay::relay::failure::Failure;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

/// A broker on a free loopback port. It ends when it is dropped.
pub struct MockBroker {
    cluster: MockCluster<'static, DefaultProducerContext>,
}

impl MockBroker {
    /// Starts it with these topics, each with so many partitions.
    ///
    /// # Errors
    ///
    /// No port is free, or a topic cannot have this name or number of partitions.
    pub fn start(topics: &[&str], partitions: i32) -> Result<MockBroker, Failure> {
        let cluster =
            MockCluster::new(1).map_err(|error| failure("starting a broker in this process", &error))?;
        for topic in topics {
            cluster
                .create_topic(topic, partitions, 1)
                .map_err(|error| failure(&format!("making the topic {topic}"), &error))?;
        }
        Ok(MockBroker { cluster })
    }

    /// Where it listens, as `[kafka] bootstrap_servers` takes it.
    pub fn bootstrap_servers(&self) -> String {
        self.cluster.bootstrap_servers()
    }
}
