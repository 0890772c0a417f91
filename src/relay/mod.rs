//! The relay: decides what is claimed, published and settled, and when. No SQL, no Kafka client and no wall clock in
//! here: it reaches them through the two traits [`outbox::Outbox`] and [`publisher::Publisher`].
//!
//! ```text
//!              lanes with work                    rows                       records
//!   scout ───────────────────▶ board ──▶ worker ◀────── outbox (Postgres)      │
//!     │ raises the fence          ▲         │ ─────────── session ─────────────┴──▶ Kafka
//!     ▼                           │         │ ─────────▶ outbox: sent_at, dead letters, holds
//!   marks ◀───────────────────────┴─────────┘
//! ```
//!
//! Begin with [`cycle`], which is the product; [`worker`] repeats it, [`scout`] feeds it.

pub mod acknowledged;
pub mod backoff;
pub mod batch;
pub mod board;
pub mod cycle;
pub mod event;
pub mod failure;
pub mod fence;
pub mod gate;
pub mod judge;
pub mod lane;
pub mod marks;
pub mod outage;
pub mod outbox;
pub mod partition;
pub mod pauses;
pub mod probe;
pub mod prober;
pub mod progress;
pub mod publisher;
pub mod reaper;
pub mod reason;
pub mod refusals;
pub mod scout;
pub mod session;
pub mod stats;
pub mod worker;

use acknowledged::{Acknowledged, Seen};
use batch::{Batch, OnRejected};
use board::Board;
use event::Event;
use gate::Gate;
use marks::Marks;
use outage::Outage;
use outbox::{Held, Settlement, Slice, Verdict};
use pg_outbox::topic::TopicTemplate;
use publisher::Producer;
use refusals::Refusals;
use session::Session;
use stats::Stats;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What the workers, the scout and the prober of one process share. One thread runs them all, so nothing is locked.
pub struct Relay<P> {
    /// Kafka.
    pub publisher: P,
    /// From `aggregate_type` to topic.
    pub template: TopicTemplate,
    /// What bounds a batch and its waits; a reload changes it.
    limits: Cell<Limits>,
    /// How often the sessions were to be renewed.
    renewals: Cell<u64>,
    /// Which lanes have work.
    pub board: Board,
    /// Whether Kafka answers.
    pub gate: Gate,
    /// Below which ids nothing is unsent.
    pub marks: Rc<RefCell<Marks>>,
    /// What topics have refused of late.
    pub refusals: Refusals,
    /// Acknowledged, not yet settled.
    pub acknowledged: RefCell<Acknowledged>,
    /// Whether Postgres works.
    pub postgres: Outage,
    /// Whether Kafka works.
    pub kafka: Outage,
    /// What happened, for metrics, health and status.
    pub stats: Arc<Stats>,
    /// The usual size of a row, to choose how many to read at once.
    row_bytes: Cell<usize>,
    /// When a batch ended of which Kafka had acknowledged rows.
    heard_at: Cell<Option<Instant>>,
    /// The last set of holds that was seen to be empty.
    nothing_held_at: Cell<Option<i64>>,
}

/// What bounds a batch and its waits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Rows a batch.
    pub batch_rows: usize,
    /// Bytes a batch; a batch holds at least one row.
    pub batch_bytes: usize,
    /// How long Kafka may take to acknowledge a batch.
    pub publish_timeout: Duration,
    /// How long a frozen relay may hold its lanes.
    pub takeover_timeout: Duration,
    /// The longest wait between two looks at the outbox.
    pub poll_interval: Duration,
    /// What happens to a row that can never become a record.
    pub on_rejected: OnRejected,
    /// After so many rows of a topic that were refused alone, one after the other, the next one holds the topic.
    pub rejections_before_hold: u32,
}

impl<P> Relay<P> {
    /// A relay that has not begun.
    pub fn new(
        publisher: P,
        template: TopicTemplate,
        limits: Limits,
        marks: Rc<RefCell<Marks>>,
        stats: Arc<Stats>,
    ) -> Self {
        Relay {
            publisher,
            template,
            limits: Cell::new(limits),
            renewals: Cell::new(0),
            board: Board::new(),
            gate: Gate::new(),
            marks,
            refusals: Refusals::new(),
            acknowledged: RefCell::new(Acknowledged::new()),
            postgres: Outage::new("Postgres"),
            kafka: Outage::new("Kafka"),
            stats,
            row_bytes: Cell::new(16 * 1024),
            heard_at: Cell::new(None),
            nothing_held_at: Cell::new(None),
        }
    }

    /// What bounds a batch and its waits now.
    pub fn limits(&self) -> Limits {
        self.limits.get()
    }

    /// From now on these bounds hold; a batch under way may still keep to those before. Sessions are renewed, since the
    /// queue of a producer is made for the batches of its time.
    pub fn set_limits(&self, limits: Limits) {
        self.limits.set(limits);
        self.renew_sessions();
    }

    /// Each worker replaces its session before its next cycle: nothing of it is in flight then. A new one is made with
    /// the settings and the secrets of its time.
    pub fn renew_sessions(&self) {
        self.renewals.set(self.renewals.get() + 1);
    }

    /// Postgres failed this party. One that fails anybody is not ready.
    fn postgres_failed(&self, party: usize, fault: &failure::Fault) {
        self.stats.postgres.fails(fault);
        self.postgres.failed(party, fault, worker::POSTGRES_ADVICE);
    }

    /// Postgres worked for this party. It answers as soon as it works for everybody: a server that only lets the scout
    /// read relays nothing.
    fn postgres_worked(&self, party: usize) {
        self.postgres.worked(party);
        if self.postgres.lasts().is_none() {
            self.stats.postgres.answers();
        }
    }

    /// How many rows probably fit into so many bytes.
    fn expected_rows(&self, bytes: usize) -> usize {
        (bytes / self.row_bytes.get().max(1)).max(1)
    }

    /// A slice did not come through: perhaps it was too much for the network, so that the next one is smaller.
    fn expect_larger_rows(&self) {
        self.row_bytes.set(self.row_bytes.get().saturating_mul(4).min(self.limits().batch_bytes));
    }

    /// Takes in what a slice says beside its rows.
    fn saw<E: Event>(&self, epoch: u64, slice: &Slice, rows: &[E]) {
        let mut marks = self.marks.borrow_mut();
        marks.saw_holds(epoch, slice.hold_version);
        if let Some(highest) = rows.iter().map(Event::id).max() {
            marks.saw_id(epoch, highest);
            self.row_bytes.set(rows.iter().map(Event::size).sum::<usize>() / rows.len());
        }
    }

    /// Marks the rows that Kafka has acknowledged before, whose settlement was lost.
    fn recognise<E: Event>(&self, batch: &mut Batch<E>, from: usize) {
        let acknowledged = self.acknowledged.borrow();
        if acknowledged.is_empty() {
            return;
        }
        for index in from..batch.len() {
            if acknowledged.contains(&batch.rows()[index]) {
                batch.recovered(index);
            }
        }
    }

    /// Takes in what Kafka said to a batch.
    fn heard<E: Event, S: Producer>(&self, session: &Session<S>, batch: &Batch<E>) {
        if batch.sent().next().is_some() {
            self.heard_at.set(Some(Instant::now()));
        }
        if !self.refusals.is_empty() {
            for topic in session.acknowledged(batch) {
                self.refusals.accepted(topic, 0);
            }
        }
    }

    /// What a claim that saw this set of holds says about rows that it did not read.
    fn seen(&self, hold_version: i64) -> Seen {
        Seen { hold_version, nothing_held: self.nothing_held_at.get() == Some(hold_version) }
    }

    /// Whether a batch has ended since then of which Kafka had acknowledged rows.
    fn heard_since(&self, begun: Instant) -> bool {
        self.heard_at.get().is_some_and(|at| at > begun)
    }

    /// Says what a settlement has recorded that a person should know.
    fn report<E: Event>(&self, settlement: &Settlement<'_, E>) {
        for Verdict { row, topic, why } in &settlement.rejected {
            tracing::warn!(
                event_id = %row.event_id(), topic, reason = why.reason,
                "Kafka can never store this event, so it is in the dead letters now; `outbox-relay dead-letters` shows it: {}. \
                 What to do: {}",
                why.error, reason::remedy(why.reason)
            );
            self.stats.dead_letters.inc();
        }
        for Verdict { row, topic, why } in &settlement.blocked {
            tracing::warn!(
                event_id = %row.event_id(), topic, reason = why.reason,
                "Kafka can never store this event, so it blocks its key until somebody decides; \
                 `outbox-relay blocked-keys` shows it: {}. What to do: {}",
                why.error, reason::remedy(why.reason)
            );
        }
        for Held { topic, why, .. } in &settlement.held {
            tracing::warn!(
                topic,
                reason = why.reason,
                "events of this topic wait until it can be written to, all others flow: {}. What to do: {}",
                why.error,
                reason::remedy(why.reason)
            );
        }
    }
}
