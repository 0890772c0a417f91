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

pub mod backoff;
pub mod cycle;
pub mod event;
pub mod failure;
pub mod health;
pub mod holds;
pub mod lane;
pub mod lanes;
pub mod outbox;
pub mod partition;
pub mod publisher;
pub mod reaper;
pub mod reason;
pub mod rows;
pub mod settings;

use cycle::narrow::Narrowing;
use health::Health;
use health::gate::Gate;
use health::stats::Stats;
use holds::known::KnownHolds;
use lanes::board::Board;
use lanes::marks::Marks;
use pg_outbox::topic::TopicTemplate;
use rows::Rows;
use settings::{Limits, Settings};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// What the workers, the scout and the prober of one process share. One thread runs them all, so nothing is locked.
pub struct Relay<P> {
    /// Kafka.
    pub publisher: P,
    /// From `aggregate_type` to topic.
    pub template: TopicTemplate,
    /// What a reload changes.
    pub settings: Settings,
    /// Which lanes have work.
    pub board: Board,
    /// Below which ids nothing is unsent.
    pub marks: Rc<RefCell<Marks>>,
    /// Lanes with rows that cannot be read.
    narrowing: Narrowing,
    /// What is known of rows beyond a batch.
    pub rows: Rows,
    /// What is known of the holds that this relay records.
    holds: KnownHolds,
    /// Whether Kafka answers.
    pub gate: Gate,
    /// What works, and what is reported of it.
    pub(crate) health: Health,
    /// What happened, for metrics, health and status.
    pub stats: Arc<Stats>,
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
            settings: Settings::new(limits),
            board: Board::new(),
            marks,
            narrowing: Narrowing::new(),
            rows: Rows::new(),
            holds: KnownHolds::default(),
            gate: Gate::new(),
            health: Health::new(Arc::clone(&stats)),
            stats,
        }
    }

    /// The relay ends: reports what it has only counted so far.
    pub fn ends(&self) {
        self.health.rejections.report_all();
    }
}
