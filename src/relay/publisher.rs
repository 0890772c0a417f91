//! Kafka as the cycle sees it. `kafka/` implements it; so does the simulator of the tests.

use crate::relay::event::Event;
use crate::relay::failure::{Failure, Rejection};

/// The cluster: opens sessions, and tries single things on throw-away ones.
#[allow(async_fn_in_trait, reason = "the relay runs on one thread: no future has to be Send")]
pub trait Publisher {
    /// One idempotent producer.
    type Producer: Producer;

    /// A new idempotent producer, connected, with its producer id: it sends what it is given at once. Takes some round
    /// trips, or seconds if no broker answers, so nothing is claimed meanwhile.
    async fn open(&self) -> Result<Self::Producer, Failure>;

    /// Publishes a few rows of one partition, in order, on a producer of their own, the first of them alone, and waits
    /// for the verdict: with a single row the only way in which a row is ever found guilty. Dropping the future
    /// leaves the outcome unknown.
    async fn judge<E: Event>(&self, topic: &str, partition: u32, rows: &[&E]) -> Judged;

    /// Whether the cluster answers, and gives a producer what it needs.
    async fn probe(&self) -> Result<(), Failure>;

    /// A producer that probes topics: a row that fails takes no other row with it. So at most one row of each partition
    /// may be in flight on it, and after a failure it takes no further rows.
    async fn open_for_probes(&self) -> Result<Self::Producer, Failure> {
        self.open().await
    }
}

/// One idempotent producer: what it accepts for a partition is stored in the order of the calls, without gaps, or not
/// at all from the first failure on.
#[allow(async_fn_in_trait, reason = "the relay runs on one thread: no future has to be Send")]
pub trait Producer {
    /// How many partitions the topic has, from this producer's own metadata. Several may be looked up at once.
    async fn lookup(&self, topic: &str) -> Result<u32, Failure>;

    /// The leader of each partition of the topic, as the brokers name it now. `None`: the partition has no leader.
    async fn leaders(&self, topic: &str) -> Result<Vec<Option<i32>>, Failure>;

    /// Asks the leader of this partition for something that needs no write. Succeeds only if this leader answers.
    async fn reach_leader(&self, topic: &str, partition: u32) -> Result<(), Failure>;

    /// Hands a row over without waiting. `index` comes back in its [`Report`].
    fn send<E: Event>(&mut self, index: u32, topic: &str, partition: u32, event: &E) -> Result<(), Refusal>;

    /// Rows handed over and not yet reported. A report can be drained before it leaves this count, never after: once
    /// this is 0, the next drain takes the last one.
    fn in_flight(&self) -> usize;

    /// A report of a failure has come in: nothing more may be sent.
    fn has_failed(&self) -> bool;

    /// Why the cluster refuses this producer altogether, if it does.
    fn refusal(&self) -> Option<Failure>;

    /// Takes the reports that have come in.
    fn drain(&mut self, reports: &mut Vec<Report>);

    /// Waits until nothing is in flight or something has failed; with `any`, until there is any report. Dropping the
    /// future is harmless.
    async fn quiet(&mut self, any: bool);

    /// Takes back what is queued and not on its way yet. Nothing may be sent after it.
    fn stop(&mut self);

    /// Waits until nothing is in flight, whatever has failed. Dropping the future is harmless.
    async fn drained(&mut self);

    /// Gives the producer up: nothing that is still queued is sent. What is on its way may arrive late.
    fn abandon(self);
}

/// Why a row was not handed over.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// It can never become a record.
    Row(Rejection),
    /// The producer takes nothing.
    Session(Failure),
}

/// What became of rows that were published on a producer of their own.
#[derive(Clone, Debug)]
pub struct Judged {
    /// So many of them, from the first on, were acknowledged.
    pub acknowledged: usize,
    /// What became of the next one; `None` only if all were acknowledged.
    pub failure: Option<Failure>,
}

/// The result for a row.
#[derive(Clone, Debug)]
pub struct Report {
    /// The index given to [`Producer::send`].
    pub index: u32,
    /// An acknowledgement by all in-sync replicas, or what is known instead.
    pub outcome: Result<(), Failure>,
}
