//! Carries out faults. The consequences are left to the example.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::process::Process;
use crate::schedule::{Fault, Kind};
use crate::support::postgres_server::Shutdown;
use crate::support::topics::Cluster;
use crate::world::{GROUP, TOPIC, World};

/// What a failover to an asynchronous standby does: the last events are sent again.
const SEND_AGAIN: &str = "
UPDATE outbox SET sent_at = NULL
WHERE id IN (SELECT id FROM outbox WHERE sent_at IS NOT NULL ORDER BY id DESC LIMIT 100)";

/// The number of records in each partition.
const REWOUND_BY: i64 = 50;
/// The brokers accept offsets from outside only after the last member of the group has left.
const REWOUND_WITHIN: Duration = Duration::from_secs(30);
const AGAIN_AFTER: Duration = Duration::from_millis(100);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

impl World {
    /// Carries out the fault. Returns when it is over.
    pub async fn strike(&self, fault: Fault) {
        match fault.kind {
            Kind::KillRelay => kill(&self.relays, fault).await,
            Kind::KillProvider => kill(&self.provider, fault).await,
            Kind::KillApi => kill(&self.apis, fault).await,
            Kind::KillConsumer => kill(&self.consumers, fault).await,
            Kind::KillClient => kill(&self.clients, fault).await,
            Kind::FreezeApi => freeze(&self.apis, fault).await,
            Kind::FreezeConsumer => freeze(&self.consumers, fault).await,
            Kind::RestartPostgres => self.restart_postgres(Shutdown::Fast, fault.lasts).await,
            Kind::KillPostgres => self.restart_postgres(Shutdown::Crash, fault.lasts).await,
            Kind::RestartKafka => {
                let mut kafka = self.kafka.lock().await;
                kafka.stop().await;
                sleep(fault.lasts).await;
                kafka.restart().await;
            }
            Kind::KillKafka => {
                let mut kafka = self.kafka.lock().await;
                kafka.kill();
                sleep(fault.lasts).await;
                kafka.restart().await;
            }
            Kind::SendAgain => {
                let _postgres = self.postgres.lock().await;
                self.connect().await.execute(SEND_AGAIN, &[]).await.unwrap();
            }
            Kind::RewindConsumers => self.rewind_consumers().await,
        }
    }

    async fn restart_postgres(&self, how: Shutdown, downtime: Duration) {
        let mut postgres = Arc::clone(&self.postgres).lock_owned().await;
        // The wait for the server's end blocks, so it runs on a separate thread while everything else continues.
        let stop = move || {
            postgres.stop(how);
            postgres
        };
        let mut postgres = tokio::task::spawn_blocking(stop).await.unwrap();
        sleep(downtime).await;
        postgres.start_again().await;
    }

    async fn rewind_consumers(&self) {
        let _kafka = self.kafka.lock().await;
        let mut stopped = Vec::new();
        for consumer in &self.consumers {
            let mut consumer = consumer.lock().await;
            consumer.kill();
            stopped.push(consumer);
        }
        let cluster = self.cluster.clone();
        tokio::task::spawn_blocking(move || rewind(&cluster)).await.unwrap();
        stopped.iter_mut().for_each(|consumer| consumer.start());
    }
}

async fn kill(those: &[Mutex<Process>], fault: Fault) {
    let mut process = those[fault.victim % those.len()].lock().await;
    process.kill();
    sleep(fault.lasts).await;
    process.start();
}

async fn freeze(those: &[Mutex<Process>], fault: Fault) {
    let process = those[fault.victim % those.len()].lock().await;
    process.freeze();
    sleep(fault.lasts).await;
    process.thaw();
}

fn rewind(cluster: &Cluster) {
    let client: BaseConsumer =
        cluster.client().set("group.id", GROUP).set("log_level", "0").create().unwrap();
    let begun = Instant::now();
    while let Err(error) = try_to_rewind(&client) {
        assert!(begun.elapsed() < REWOUND_WITHIN, "the consumers were not rewound: {error}");
        std::thread::sleep(AGAIN_AFTER);
    }
}

fn try_to_rewind(client: &BaseConsumer) -> Result<(), rdkafka::error::KafkaError> {
    let mut committed = TopicPartitionList::new();
    let metadata = client.fetch_metadata(Some(TOPIC), ANSWER_WITHIN)?;
    for partition in metadata.topics()[0].partitions() {
        committed.add_partition(TOPIC, partition.id());
    }
    let committed = client.committed_offsets(committed, ANSWER_WITHIN)?;
    let mut earlier = TopicPartitionList::new();
    for partition in committed.elements() {
        if let Offset::Offset(offset) = partition.offset() {
            let offset = Offset::Offset((offset - REWOUND_BY).max(0));
            earlier.add_partition_offset(TOPIC, partition.partition(), offset)?;
        }
    }
    if earlier.count() == 0 {
        return Ok(()); // nothing has been read yet
    }
    client.commit(&earlier, CommitMode::Sync)
}
