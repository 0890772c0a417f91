//! The fate of each row of a batch, and the knowledge of rows that outlives the batch.
//!
//! Each row of a [`batch::Batch`] has one [`Fate`]:
//!
//! | Fate | Meaning | Next fate | When |
//! |---|---|---|---|
//! | `Open` | not sent | `InFlight` | the session sends it |
//! | | | `Acknowledged` | it is in the acknowledged set |
//! | | | `Suspect` | its topic has refused a row of this size or a smaller one |
//! | | | `Rejected`, `Blocked` | it can never become a record |
//! | `InFlight` | sent, without a report | `Acknowledged` | Kafka acknowledges it |
//! | | | `Suspect` | Kafka refuses it, or another row of its request |
//! | | | `Open` | any other failure: whether it is stored is unknown |
//! | `Suspect` | to be judged alone | `Acknowledged` | Kafka accepts it alone |
//! | | | `Rejected`, `Blocked` | Kafka refuses it alone |
//! | `Acknowledged`, `Rejected`, `Blocked` | final | | |
//!
//! An open row waits in its session for one of these reasons: the first row of its partition is not acknowledged yet, an
//! earlier row has to be judged first, its topic is held, its key is blocked, or the session has closed.
//!
//! The fate at the end of the batch decides what the settlement records:
//!
//! | Fate | What the settlement records | What happens to the row |
//! |---|---|---|
//! | `Acknowledged` | it is sent | without a confirmed COMMIT it goes to the acknowledged set |
//! | `Rejected` | a dead letter | it leaves the outbox |
//! | `Blocked` | a blocked key, unless an earlier row of the key stays unsent | it stays unsent until an operator decides |
//! | `Open`, `InFlight`, `Suspect` | nothing, or a hold of its topic | it stays unsent, and is claimed again |
//!
//! [`RowMemory`] has the knowledge that outlives a batch. It is in memory only:
//!
//! | What | Begins | Effect | Ends |
//! |---|---|---|---|
//! | acknowledged set | a settlement is not confirmed | a claim that reads the row settles it without sending it | a claim covers the row, or a COMMIT records it |
//! | probing | the ack of a probe is late | a claim that reads the row fails and is repeated | the ack arrives, or the probe times out |
//! | refusals | Kafka refuses a row alone | rows of this size are judged alone; after several rows the topic is held | the topic accepts a row |
//!
//! Holds, blocked keys and pauses are rows of the database, which the claim's own statement reads.

pub mod acknowledged;
pub mod batch;
pub mod coverage;
pub(crate) mod fate;
pub mod refusals;

use crate::event::Event;
use crate::failure::{Fault, FaultKind};
use crate::lane::Lane;
use acknowledged::{Acknowledged, HoldsSeen};
use batch::Batch;
use refusals::Refusals;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use uuid::Uuid;

pub(crate) use fate::Fate;

/// The expected size of a row before any row was read.
const FIRST_ROW_BYTES: usize = 16 * 1024;
/// The maximum number of rows per claim until a settlement has recorded all its rows as sent. If PostgreSQL never records any, for
/// example because of a constraint, these rows are published again after each restart.
const UNPROVEN_ROWS_MAX: usize = 100;

/// A relay's knowledge of rows that outlives a batch.
pub struct RowMemory {
    /// Rows that are acknowledged but not settled.
    pub acknowledged: RefCell<Acknowledged>,
    /// Recent refusals.
    pub refusals: Refusals,
    /// Whether PostgreSQL refused the latest settlement.
    settling_is_refused: Cell<bool>,
    /// Whether PostgreSQL has ever recorded all rows of one.
    has_recorded: Cell<bool>,
    /// Rows of probes in flight without their lane locks, by id and event_id, with their lanes.
    probing: RefCell<HashMap<(i64, Uuid), Lane>>,
    /// The version of the last empty set of holds.
    nothing_held_at: Cell<Option<i64>>,
    /// The usual size of a row, which decides how many to read at once.
    row_bytes: Cell<usize>,
}

impl RowMemory {
    pub(crate) fn new() -> RowMemory {
        RowMemory {
            acknowledged: RefCell::new(Acknowledged::new()),
            refusals: Refusals::new(),
            settling_is_refused: Cell::new(false),
            has_recorded: Cell::new(false),
            probing: RefCell::default(),
            nothing_held_at: Cell::new(None),
            row_bytes: Cell::new(FIRST_ROW_BYTES),
        }
    }

    /// Marks the rows from this index on that are in the acknowledged set.
    pub(crate) fn mark_acknowledged<E: Event>(&self, batch: &mut Batch<E>, from: usize) {
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

    /// Records the result of recording sent rows. Until it succeeds, claims read no more rows than wait to be recorded, because
    /// each other row that they published would be published again after a restart.
    pub(crate) fn note_settlement(&self, fault: Option<&Fault>) {
        match fault.map(|fault| fault.kind) {
            None => self.settling_is_refused.set(false),
            Some(FaultKind::Refused) => self.settling_is_refused.set(true),
            Some(_) => {}
        }
    }

    /// Records that PostgreSQL has recorded all sent rows of a settlement.
    pub(crate) fn note_recorded(&self) {
        self.has_recorded.set(true);
    }

    /// Whether PostgreSQL refused the latest settlement.
    pub(crate) fn settling_is_refused(&self) -> bool {
        self.settling_is_refused.get()
    }

    /// The maximum number of rows of a claim, given the limit that applies once rows have been recorded as sent.
    pub(crate) fn rows_max(&self, limit: usize) -> usize {
        if self.has_recorded.get() { limit } else { limit.min(UNPROVEN_ROWS_MAX) }
    }

    /// The maximum number of rows to read from each of these lanes while settlements are refused: the rows that wait to be
    /// recorded, or one row.
    pub(crate) fn shares_if_refused(&self, lanes: &[Lane]) -> Option<Vec<usize>> {
        let acknowledged = self.acknowledged.borrow();
        let share = |lane: &Lane| acknowledged.count(*lane).max(1);
        self.settling_is_refused.get().then(|| lanes.iter().map(share).collect())
    }

    /// Records that a probe has this row in flight without its lane lock.
    pub(crate) fn begin_probing<E: Event>(&self, row: &E) {
        self.probing.borrow_mut().insert((row.id(), row.event_id()), row.lane());
    }

    /// Records that no probe has this row in flight any more.
    pub(crate) fn end_probing<E: Event>(&self, row: &E) {
        self.probing.borrow_mut().remove(&(row.id(), row.event_id()));
    }

    /// Whether a probe has one of these rows in flight. A claim reads such a row only if its hold was deleted meanwhile, and
    /// must not publish it a second time.
    pub(crate) fn probes_any_of<E: Event>(&self, rows: &[E]) -> bool {
        let probing = self.probing.borrow();
        !probing.is_empty() && rows.iter().any(|row| probing.contains_key(&(row.id(), row.event_id())))
    }

    /// Which of these lanes have a row that a probe has in flight.
    pub(crate) fn probed(&self, lanes: &[Lane]) -> Vec<Lane> {
        let probing = self.probing.borrow();
        lanes.iter().copied().filter(|lane| probing.values().any(|probed| probed == lane)).collect()
    }

    /// Records the version of the set of holds if it is empty, otherwise `None`.
    pub(crate) fn note_empty_holds(&self, hold_version: Option<i64>) {
        self.nothing_held_at.set(hold_version);
    }

    /// The set of holds with this version, and whether it is known to be empty.
    pub(crate) fn holds_seen(&self, hold_version: i64) -> HoldsSeen {
        HoldsSeen { hold_version, nothing_held: self.nothing_held_at.get() == Some(hold_version) }
    }

    /// Expects further rows to have the average size of these.
    pub(crate) fn note_row_size<E: Event>(&self, rows: &[E]) {
        if !rows.is_empty() {
            self.row_bytes.set(rows.iter().map(Event::size).sum::<usize>() / rows.len());
        }
    }

    /// Makes the next slice smaller after a failed one, which may have been too much for the network.
    pub(crate) fn note_failed_slice(&self, bytes_max: usize) {
        self.row_bytes.set(self.row_bytes.get().saturating_mul(4).min(bytes_max));
    }

    /// How many rows are expected to fit into this many bytes.
    pub(crate) fn rows_in(&self, bytes: usize) -> usize {
        (bytes / self.row_bytes.get().max(1)).max(1)
    }
}
