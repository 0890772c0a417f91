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
//! Begin with [`cycle`], which is the product; [`cycle::worker`] repeats it, [`lanes::scout`] feeds it.

pub mod cycle;
pub mod event;
pub mod failure;
pub mod health;
pub mod holds;
pub mod lane;
pub mod lanes;
pub mod outbox;
pub mod publisher;
pub mod reaper;
pub mod reason;

use cycle::batch::{Batch, OnRejected};
use cycle::narrow::Narrowing;
use cycle::refusals::Refusals;
use cycle::session::{Session, Tally};
use event::Event;
use health::gate::Gate;
use health::outage::Outage;
use health::rejections::Rejections;
use health::stats::Stats;
use holds::elsewhere::Elsewhere;
use holds::holding::Holding;
use lanes::acknowledged::{Acknowledged, Seen};
use lanes::board::Board;
use lanes::marks::Marks;
use outbox::{Held, Settlement, Slice, Verdict};
use pg_outbox::topic::TopicTemplate;
use publisher::Producer;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// Locks of others are ordinary as long as they are gone soon: operators' statements, deadlocks.
const LOCKS_PATIENCE: Duration = Duration::from_secs(5);

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
    /// Rows in flight that probe held topics, without the locks of their lanes: by id and event_id.
    probing: RefCell<HashSet<(i64, Uuid)>>,
    /// Whether Postgres works.
    pub postgres: Outage,
    /// Whether Kafka works.
    pub kafka: Outage,
    /// Whether nobody else's locks stand in the way for long.
    locks: Outage,
    /// Lanes with rows that cannot be read.
    narrowing: Narrowing,
    /// Until when settlements leave holds and blocked keys out, if they have anything else to record.
    without_holds: Cell<Option<Instant>>,
    /// Topics that were said to be held.
    holding: Holding,
    /// What other relays can reach and this one cannot.
    elsewhere: Elsewhere,
    /// Rows that were said to be refused.
    rejections: Rejections,
    /// What happened, for metrics, health and status.
    pub stats: Arc<Stats>,
    /// What the database's clock said, in microseconds since 1970, and when it said so.
    clock: Cell<Option<(i64, Instant)>>,
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
            probing: RefCell::default(),
            postgres: Outage::new("postgres"),
            kafka: Outage::new("kafka"),
            locks: Outage::lasting("locked rows", LOCKS_PATIENCE),
            narrowing: Narrowing::new(),
            without_holds: Cell::new(None),
            holding: Holding::default(),
            elsewhere: Elsewhere::default(),
            rejections: Rejections::default(),
            stats,
            clock: Cell::new(None),
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
        self.postgres.failed(party, fault, cycle::worker::POSTGRES_ADVICE);
    }

    /// Postgres worked for this party. It answers as soon as it works for everybody: a server that only lets the scout
    /// read relays nothing.
    fn postgres_worked(&self, party: usize) {
        self.postgres.worked(party);
        if self.postgres.lasts().is_none() {
            self.stats.postgres.answers();
        }
    }

    /// Kafka works for everybody.
    fn kafka_works(&self) {
        self.stats.kafka.answers();
        self.kafka.worked(0);
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
        marks.saw_basis(epoch, slice.basis);
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

    /// Whether the prober has one of these rows in flight. A claim reads such a row only if its hold disappeared meanwhile;
    /// if it published the row as well, the row would be stored twice.
    fn probes_any_of<E: Event>(&self, rows: &[E]) -> bool {
        let probing = self.probing.borrow();
        !probing.is_empty() && rows.iter().any(|row| probing.contains(&(row.id(), row.event_id())))
    }

    /// Takes in what Kafka said to a batch.
    fn heard<E: Event, S: Producer>(&self, session: &Session<S>, batch: &Batch<E>) {
        if batch.sent().next().is_some() {
            self.heard_at.set(Some(Instant::now()));
        }
        let mut acknowledged = false;
        for (topic, Tally { rows, bytes }) in session.tally(batch) {
            self.stats.count_topic(topic, rows, bytes);
            acknowledged = true;
        }
        let handed_over = session.publishing().filter(|_| acknowledged).map(|lasted| Instant::now() - lasted);
        if handed_over.is_some_and(|at| self.gate.acknowledged(at)) {
            self.kafka_works();
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

    /// Holds and blocked keys change one row, the version of their set, which an operator's open transaction may keep locked.
    /// What Kafka has acknowledged must not wait for that: the rows that they are about stay unsent, and are decided about
    /// again in a later batch.
    fn leave_holds_out<E>(&self, settlement: &mut Settlement<'_, E>) {
        let leaves_out = self.without_holds.get().is_some_and(|until| until > Instant::now());
        if leaves_out && !(settlement.sent.is_empty() && settlement.rejected.is_empty()) {
            settlement.held.clear();
            settlement.blocked.clear();
        }
    }

    /// A settlement failed. Perhaps somebody else's lock kept its holds from being recorded.
    fn not_settled<E>(&self, settlement: &Settlement<'_, E>, fault: &failure::Fault) {
        let holds = !settlement.held.is_empty() || !settlement.blocked.is_empty();
        if holds && fault.kind == failure::FaultKind::Contended {
            self.without_holds.set(Some(Instant::now() + LOCKS_PATIENCE));
        }
    }

    /// Counts what a settlement has recorded, and says what of it a person should know: a fault that comes again and
    /// again only when it begins.
    fn report<E: Event>(&self, settlement: &Settlement<'_, E>) {
        self.time(&settlement.sent);
        for verdict in &settlement.rejected {
            self.stats.dead_letters.inc();
            self.refused(verdict, "moved to the dead letters");
        }
        for verdict in &settlement.blocked {
            self.refused(verdict, "key blocked");
        }
        for Held { topic, why, witness } in &settlement.held {
            if why.reason == reason::STUCK.word {
                self.elsewhere.held(topic, witness.id());
            }
            if !self.holding.begins(topic) {
                tracing::debug!(topic, reason = why.reason, "topic already held: {}", why.error);
                continue;
            }
            self.stats.holds.inc();
            tracing::warn!(
                topic,
                reason = why.reason,
                "topic held, other topics continue: {}. Fix: {}",
                why.error,
                reason::remedy(why.reason)
            );
        }
    }

    /// How late the oldest of these rows were. Ids are drawn in about the order of `created_at`.
    fn time<E: Event>(&self, sent: &[&E]) {
        let oldest = sent.iter().min_by_key(|row| row.id());
        let (Some(oldest), Some((clock_us, at))) = (oldest, self.clock.get()) else { return };
        let now_us = clock_us.saturating_add_unsigned(at.elapsed().as_micros() as u64);
        let late_us = now_us.saturating_sub(oldest.created_at_us()).max(0);
        self.stats.latency_seconds.observe(late_us as f64 / 1e6);
    }

    fn refused<E: Event>(&self, Verdict { row, topic, why }: &Verdict<'_, E>, so: &str) {
        self.stats.count_rejected(why.reason);
        let unreadable = why.reason == reason::UNREADABLE_ROW.word;
        let what = if unreadable { "event unreadable" } else { "event rejected" };
        if !self.rejections.begins(topic, why.reason) {
            tracing::debug!(
                event_id = %row.event_id(), topic, reason = why.reason,
                "{what} again, {so}: {}", why.error
            );
            return;
        }
        tracing::warn!(
            event_id = %row.event_id(), topic, reason = why.reason,
            "{what}, {so}: {}. Fix: {}",
            why.error, reason::remedy(why.reason)
        );
    }

    /// The relay ends: reports what it has only counted so far.
    pub fn ends(&self) {
        self.rejections.report_all();
    }
}
