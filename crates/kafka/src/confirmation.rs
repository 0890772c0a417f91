//! Acknowledgements count only if they come from the right cluster.
//!
//! The names of the brokers may begin to lead to another cluster. librdkafka then sends it the records that were not acknowledged. It
//! learns the ID of a cluster only from metadata responses, and acknowledgements may arrive before. So those that arrive after a new
//! connection wait until a broker has answered a metadata request.

use crate::client::METADATA_TIMEOUT;
use crate::reports::Context;
use rdkafka::producer::{BaseProducer, Producer};
use relay::health::stats::lock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::{Builder, sleep};
use std::time::Duration;

/// The pause after a request that no broker has answered.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections of one producer, and the acknowledgements that wait.
#[derive(Default)]
pub(crate) struct Confirmation {
    pub(crate) client: OnceLock<Weak<BaseProducer<Context>>>,
    /// The ID of the cluster that answered first.
    cluster: OnceLock<String>,
    /// How many connections there were, and how many when a broker of that cluster last answered.
    connections: AtomicU64,
    confirmed: AtomicU64,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// The rows, and how many connections there were when they were acknowledged.
    rows: Vec<(usize, u64)>,
    is_asking: bool,
}

impl Confirmation {
    pub(crate) fn connected(&self) {
        self.connections.fetch_add(1, Ordering::AcqRel);
    }

    /// Brokers of this cluster have answered on the connections so far.
    pub(crate) fn confirm(&self, cluster: &str) {
        if self.cluster.get_or_init(|| cluster.to_owned()) == cluster {
            self.confirmed.store(self.connections(), Ordering::Release);
        }
    }

    /// Whether this acknowledgement must wait. If so, keeps it.
    pub(crate) fn keeps(&self, row: usize, topic: &str) -> bool {
        let must_wait = || self.connections() != self.confirmed.load(Ordering::Acquire);
        if !must_wait() {
            return false;
        }
        let mut waiting = lock(&self.waiting);
        // The wait may have ended before the lock was taken.
        let keeps = must_wait();
        if keeps {
            waiting.rows.push((row, self.connections()));
            if !waiting.is_asking {
                waiting.is_asking = self.ask(topic.to_owned());
            }
        }
        keeps
    }

    fn connections(&self) -> u64 {
        self.connections.load(Ordering::Acquire)
    }

    /// Asks for metadata on another thread, because a login may need a poll. Returns whether the thread was started.
    fn ask(&self, topic: String) -> bool {
        let Some(client) = self.client.get().and_then(Weak::upgrade) else { return false };
        let ask = move || {
            let reports = &client.context().reports;
            // The polling thread has a handle, too. Without a third one, the producer was dropped.
            while Arc::strong_count(&client) > 2 {
                let connections = reports.confirmation.connections();
                if client.client().fetch_metadata(Some(&topic), METADATA_TIMEOUT).is_err() {
                    sleep(PAUSE);
                    continue;
                }
                let cluster = client.client().fetch_cluster_id(Duration::ZERO).unwrap_or_default();
                let (rows, asks_again) = reports.confirmation.answered(connections, &cluster);
                rows.into_iter().for_each(|row| reports.report(row, Ok(())));
                if !asks_again {
                    return;
                }
            }
        };
        Builder::new().name("cluster check".to_owned()).spawn(ask).is_ok()
    }

    /// A broker of this cluster has answered a request that was sent when there were this many connections. Returns the
    /// acknowledgements that count now, and whether others wait for another answer. If the cluster is another one, all wait forever.
    fn answered(&self, connections: u64, cluster: &str) -> (Vec<usize>, bool) {
        let mut waiting = lock(&self.waiting);
        if self.cluster.get_or_init(|| cluster.to_owned()) != cluster {
            return (Vec::new(), false);
        }
        self.confirmed.store(connections, Ordering::Release);
        let rows = waiting.rows.extract_if(.., |(_, at)| *at <= connections).map(|(row, _)| row).collect();
        waiting.is_asking = !waiting.rows.is_empty();
        (rows, waiting.is_asking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confirmation() -> Confirmation {
        let confirmation = Confirmation::default();
        assert!(!confirmation.keeps(0, "t"), "there is no connection yet");
        confirmation.connected();
        confirmation.confirm("a");
        assert!(!confirmation.keeps(0, "t"));
        confirmation.connected();
        assert!(confirmation.keeps(1, "t") && confirmation.keeps(2, "u"));
        confirmation
    }

    #[test]
    fn acknowledgements_after_a_new_connection_wait_for_an_answer() {
        let confirmation = confirmation();
        confirmation.connected();
        assert!(confirmation.keeps(3, "t"));
        assert_eq!(
            confirmation.answered(2, "a"),
            (vec![1, 2], true),
            "the third connection may be to another cluster"
        );
        assert!(confirmation.keeps(4, "t"));
        assert_eq!(confirmation.answered(3, "a"), (vec![3, 4], false));
        assert!(!confirmation.keeps(5, "t"));
    }

    #[test]
    fn acknowledgements_of_another_cluster_never_count() {
        let confirmation = confirmation();
        assert_eq!(confirmation.answered(2, "b"), (vec![], false));
        assert!(confirmation.keeps(3, "t"));
    }
}
