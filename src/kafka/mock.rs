//! A Kafka broker inside of this process, for the demo and for tests of the client.
//!
//! It is librdkafka's own mock: enough of the protocol for real producers and consumers over real sockets, and no more.
//! A partition keeps 5 MiB or 100,000 records and then forgets the oldest ones; nothing is stored on disk. Whatever is
//! claimed of the relay is shown on a real Kafka instead.

use super::failure::failure;
use crate::relay::failure::Failure;
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
