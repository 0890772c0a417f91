//! Kafka as the cycle sees it. The crate `kafka` and the simulator of the tests implement these traits.

use crate::{Event, KafkaFailure, Rejection};
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// From this number on, topics are compared with the list of all topics before each one is looked up. Looking up thousands of
/// missing topics one by one takes seconds, and the client keeps asking for each of them.
pub(crate) const LISTED_FROM: usize = 64;

/// The cluster: opens producers for sessions, and short-lived ones to judge rows and to probe.
pub trait Publisher {
    type Producer: Producer;

    /// Opens an idempotent producer that is connected and has its producer ID. This takes some round trips, or seconds if
    /// no broker answers, so nothing may be claimed meanwhile.
    async fn open(&self) -> Result<Self::Producer, KafkaFailure>;

    /// Publishes a few rows of one partition in order on a producer that no session uses, the first of them alone, and waits for
    /// the reports of each step for up to `patience`. Only a row that is judged alone can be found at fault. Opening the producer and waiting for the first row take
    /// time, so `may_send` is called before the first row and before the others. Dropping the future leaves the outcome unknown.
    async fn judge<E: Event>(
        &self,
        topic: &str,
        partition: u32,
        rows: &[&E],
        patience: Duration,
        may_send: impl Fn() -> bool,
    ) -> Judged;

    /// Checks whether the cluster answers and assigns a producer ID.
    async fn probe(&self) -> Result<(), KafkaFailure>;

    /// Opens a producer that probes topics, on which the failure of one row does not affect other rows. At most one row per
    /// partition may be in flight on it, and it accepts no rows after a failure.
    async fn open_for_probes(&self) -> Result<Self::Producer, KafkaFailure> {
        self.open().await
    }
}

/// One idempotent producer. The records of a partition are stored in the order of the calls and without gaps, up to the
/// first failure. Dropping it discards its queue. Records that are already being sent may be stored later.
pub trait Producer {
    /// The number of partitions of the topic, from this producer's own metadata. Several lookups may run at once.
    async fn lookup(&self, topic: &str) -> Result<u32, KafkaFailure>;

    /// The names of all topics of the cluster, in one request. `None` if they are not available.
    async fn list_topics(&self) -> Option<HashSet<String>> {
        None
    }

    /// Whether this producer has looked up so many missing topics that it should be replaced.
    fn is_worn(&self) -> bool {
        false
    }

    /// The current leader of each partition of the topic, or `None` for a partition without a leader.
    async fn leaders(&self, topic: &str) -> Result<Vec<Option<i32>>, KafkaFailure>;

    /// Sends a read-only request to the leader of this partition. Succeeds only if this leader answers.
    async fn reach_leader(&self, topic: &str, partition: u32) -> Result<(), KafkaFailure>;

    /// Sends a row without waiting. Its [`DeliveryReport`] contains `index`.
    fn send<E: Event>(&mut self, index: u32, topic: &str, partition: u32, event: &E) -> Result<(), NotSent>;

    /// Whether a failure was reported. Nothing more may be sent then.
    fn has_failed(&self) -> bool;

    /// Whether Kafka no longer answers this producer, although it may not have sent anything.
    async fn is_cut_off(&self) -> bool {
        self.has_failed()
    }

    /// Why the cluster refuses this producer altogether, if it does.
    fn fatal_error(&self) -> Option<KafkaFailure>;

    /// The latest error that the client reported by itself, such as a lost connection, if it is at most this old.
    /// Delivery reports do not contain it.
    fn last_error(&self, _max_age: Duration) -> Option<String> {
        None
    }

    /// Moves the reports that have arrived to `reports`.
    fn take_reports(&mut self, reports: &mut Vec<DeliveryReport>);

    /// Waits until nothing is in flight or something has failed, or with `any` until there is a report. Cancel-safe.
    async fn wait_until_quiet(&mut self, any: bool);

    /// Takes back the records without a report. A record that was taken back must not be overtaken by a later one in flight
    /// that is sent again. Nothing may be sent afterwards.
    async fn withdraw(&mut self);

    /// Waits until nothing is in flight, even after a failure. Cancel-safe.
    async fn all_reported(&mut self);

    async fn stop(&mut self, within: Duration) {
        stop(self, within).await;
    }
}

/// Ends the sending of a producer: waits up to this time for reports, so that fewer records have to be sent again, and takes
/// back the others. Until a record fails, all of them are still sent in order, so none is taken back earlier.
pub async fn stop<P: Producer + ?Sized>(producer: &mut P, within: Duration) {
    let until = Instant::now() + within;
    _ = timeout_at(until, producer.wait_until_quiet(false)).await;
    producer.withdraw().await;
    _ = timeout_at(until, producer.all_reported()).await;
}

#[derive(Clone, Debug)]
pub enum NotSent {
    Row(Rejection),
    /// The producer accepts no rows.
    Session(KafkaFailure),
}

#[derive(Clone, Debug)]
pub struct Judged {
    /// How many rows were acknowledged, from the first one on.
    pub acknowledged: usize,
    /// Why the next row was not acknowledged; `None` if all were.
    pub failure: Option<KafkaFailure>,
}

#[derive(Clone, Debug)]
pub struct DeliveryReport {
    pub index: u32,
    /// An acknowledgement by all in-sync replicas, or the failure.
    pub outcome: Result<(), KafkaFailure>,
}
