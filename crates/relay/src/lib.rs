//! The relay: decides what is claimed, published and settled, and when. It contains no SQL, no Kafka client and no wall
//! clock. It reaches Postgres and Kafka through traits such as [`outbox::Outbox`] and [`publisher::Publisher`].
//!
//! ```text
//!              lanes with work                    rows                       records
//!   scout ───────────────────▶ board ──▶ worker ◀────── outbox (Postgres)      │
//!     │ raises the fence          ▲         │ ─────────── session ─────────────┴──▶ Kafka
//!     ▼                           │         │ ─────────▶ outbox: sent_at, dead letters, holds
//!   marks ◀───────────────────────┴─────────┘
//! ```
//!
//! Start with [`cycle`]. [`cycle::worker`] repeats it, and [`lanes::scout`] finds work for it.

#![warn(unreachable_pub)]
#![allow(rustdoc::private_intra_doc_links)] // the documentation is for people who work on the code

pub mod backoff;
pub mod cycle;
pub mod event;
pub mod fail_point;
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
pub mod topic;
pub mod topic_allow;

use crate::settings::{Limits, Settings};
use cycle::narrow::Narrowing;
use health::Health;
use health::gate::Gate;
use health::stats::Stats;
use holds::known::KnownHolds;
use lanes::board::Board;
use lanes::marks::Marks;
use partition::Counts;
use rows::RowMemory;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use topic::TopicRules;

/// State shared by the workers, the scout and the prober of one process. One thread runs them all, so there are no locks.
pub struct Relay<P> {
    /// Kafka.
    pub publisher: P,
    /// The topics of events.
    pub topics: TopicRules,
    /// The number of partitions of topics in use.
    pub counts: Rc<Counts>,
    /// Settings that a reload may change.
    pub settings: Settings,
    /// Which lanes have work.
    pub board: Board,
    /// The low-water marks.
    pub marks: Rc<RefCell<Marks>>,
    /// Lanes with rows that cannot be read.
    narrowing: Narrowing,
    /// Knowledge of rows that outlives a batch.
    pub rows: RowMemory,
    holds: KnownHolds,
    /// Closed while Kafka is unavailable.
    pub gate: Gate,
    pub health: Health,
    /// Counters for metrics, health and status.
    pub stats: Arc<Stats>,
}

impl<P> Relay<P> {
    /// A relay that has not started.
    pub fn new(
        publisher: P,
        topics: TopicRules,
        limits: Limits,
        marks: Rc<RefCell<Marks>>,
        stats: Arc<Stats>,
    ) -> Self {
        Relay {
            publisher,
            topics,
            counts: Rc::new(Counts::new(Arc::clone(&stats))),
            settings: Settings::new(limits),
            board: Board::new(),
            marks,
            narrowing: Narrowing::new(),
            rows: RowMemory::new(),
            holds: KnownHolds::default(),
            gate: Gate::new(),
            health: Health::new(Arc::clone(&stats)),
            stats,
        }
    }

    /// Logs at the end what was only counted so far.
    pub fn ends(&self) {
        self.health.rejections.report_all();
    }
}
