//! The end of a run: everything that was started is completed.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Offset, TopicPartitionList};

use crate::support::topics::Cluster;
use crate::support::wait::wait_until;
use crate::world::{GROUP, TOPIC, World};

/// The completer's pauses grow with each attempt, and a relay checks for rows that were put back every 15 s.
const WITHIN: Duration = Duration::from_secs(120);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

const NOTHING_LEFT: &str = "
SELECT NOT EXISTS (SELECT FROM idempotency_key WHERE finished_at IS NULL)
   AND NOT EXISTS (SELECT FROM outbox WHERE sent_at IS NULL)";

/// Stops the clients after their current payment, waits until no work is left, and stops the other processes. Returns
/// the processes that did not end correctly.
pub async fn wait_for_quiet(world: &World) -> Vec<String> {
    let mut broken = Vec::new();
    for client in &world.clients {
        let mut client = client.lock().await;
        if !client.stop().await {
            broken.push(format!("{} gave up:\n{}", client.name, client.said()));
        }
    }
    let client = world.connect().await;
    wait_until("no request is unfinished, and no event unsent", WITHIN, async || {
        client.query_one(NOTHING_LEFT, &[]).await.unwrap().get(0)
    })
    .await;
    wait_until("the consumers have read everything", WITHIN, async || {
        let cluster = world.cluster.clone();
        tokio::task::spawn_blocking(move || lag(&cluster)).await.unwrap() == 0
    })
    .await;
    for process in world.consumers.iter().chain(&world.relays) {
        let mut process = process.lock().await;
        if !process.stop().await {
            broken.push(format!("{} did not end correctly after SIGTERM:\n{}", process.name, process.said()));
        }
    }
    broken
}

/// The number of records after the committed offsets.
fn lag(cluster: &Cluster) -> i64 {
    let client: BaseConsumer = cluster.client().set("group.id", GROUP).create().unwrap();
    let mut committed = TopicPartitionList::new();
    for partition in 0..cluster.partitions(TOPIC) {
        committed.add_partition(TOPIC, partition);
    }
    let committed = client.committed_offsets(committed, ANSWER_WITHIN).unwrap();
    let behind = committed.elements().into_iter().map(|partition| {
        let (_, end) = client.fetch_watermarks(TOPIC, partition.partition(), ANSWER_WITHIN).unwrap();
        match partition.offset() {
            Offset::Offset(offset) => end - offset,
            _ => end,
        }
    });
    behind.sum()
}
