//! What is known of rows: the fate of each row of a batch, and what outlives the batch.
//!
//! Each row of a [`batch::Batch`] has one [`Fate`]:
//!
//! | Fate | Meaning | Next fate | When |
//! |---|---|---|---|
//! | `Open` | not sent | `InFlight` | the session sends it |
//! | | | `Acknowledged` | the acknowledged set knows it |
//! | | | `Suspect` | its topic has refused a row of this size or a smaller one |
//! | | | `Rejected`, `Blocked` | it can never become a record |
//! | `InFlight` | sent, without a report | `Acknowledged` | Kafka acknowledges it |
//! | | | `Suspect` | Kafka refuses it, or another row of its request |
//! | | | `Open` | any other failure: whether it is stored is unknown |
//! | `Suspect` | to be judged alone | `Acknowledged` | Kafka accepts it alone |
//! | | | `Rejected`, `Blocked` | Kafka refuses it alone |
//! | `Acknowledged`, `Rejected`, `Blocked` | final | | |
//!
//! An open row waits in its session for one of these reasons: the first row of its partition is not acknowledged yet, a row
//! before it is kept back to be judged, its topic is held, its key is blocked, or the session has closed.
//!
//! The settlement decides by the fate at the end of the batch:
//!
//! | Fate | What the settlement records | What happens to the row |
//! |---|---|---|
//! | `Acknowledged` | it is sent | without a confirmed COMMIT it goes to the acknowledged set |
//! | `Rejected` | a dead letter | it leaves the outbox |
//! | `Blocked` | a blocked key, unless an earlier row of the key stays unsent | it stays unsent until an operator decides |
//! | `Open`, `InFlight`, `Suspect` | nothing, or a hold of its topic | it stays unsent, and is claimed again |
//!
//! What outlives a batch, in memory only, is in [`Rows`]:
//!
//! | What | Begins | Effect | Ends |
//! |---|---|---|---|
//! | acknowledged set | a settlement is not confirmed | a claim that reads the row settles it without sending it | a claim covers the row, or a COMMIT records it |
//! | probing | the answer to a probe is late | a claim that reads the row fails, and is repeated | the answer arrives, or the probe is given up |
//! | refusals | Kafka refuses a row alone | rows of this size are judged alone; after several rows the topic is held | the topic accepts a row |
//!
//! Holds, blocked keys and pauses are rows of the database, which the claim's own statement reads.

pub mod acknowledged;
pub mod batch;
pub(crate) mod fate;
pub mod reach;
pub mod refusals;

use crate::relay::event::Event;
use acknowledged::{Acknowledged, Seen};
use batch::Batch;
use refusals::Refusals;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use uuid::Uuid;

pub(crate) use fate::Fate;

/// The size that a row is expected to have before any was read.
const FIRST_ROW_BYTES: usize = 16 * 1024;

/// What one relay knows of rows beyond a batch.
pub struct Rows {
    /// Acknowledged, not yet settled.
    pub acknowledged: RefCell<Acknowledged>,
    /// What topics have refused recently.
    pub refusals: Refusals,
    /// Rows in flight that probe held topics, without the locks of their lanes: by id and event_id.
    probing: RefCell<HashSet<(i64, Uuid)>>,
    /// The last set of holds that was seen to be empty.
    nothing_held_at: Cell<Option<i64>>,
    /// The usual size of a row, to choose how many to read at once.
    row_bytes: Cell<usize>,
}

impl Rows {
    /// Nothing is known.
    pub(crate) fn new() -> Rows {
        Rows {
            acknowledged: RefCell::new(Acknowledged::new()),
            refusals: Refusals::new(),
            probing: RefCell::default(),
            nothing_held_at: Cell::new(None),
            row_bytes: Cell::new(FIRST_ROW_BYTES),
        }
    }

    /// Marks the rows from this index on that Kafka has acknowledged before, and whose settlement was lost.
    pub(crate) fn recognise<E: Event>(&self, batch: &mut Batch<E>, from: usize) {
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

    /// A probe has this row in flight, without the lock of its lane.
    pub(crate) fn begin_probing<E: Event>(&self, row: &E) {
        self.probing.borrow_mut().insert((row.id(), row.event_id()));
    }

    /// No probe has this row in flight any more.
    pub(crate) fn end_probing<E: Event>(&self, row: &E) {
        self.probing.borrow_mut().remove(&(row.id(), row.event_id()));
    }

    /// Whether a probe has one of these rows in flight. A claim reads such a row only if its hold disappeared meanwhile. If it
    /// published the row as well, the row would be stored twice.
    pub(crate) fn probes_any_of<E: Event>(&self, rows: &[E]) -> bool {
        let probing = self.probing.borrow();
        !probing.is_empty() && rows.iter().any(|row| probing.contains(&(row.id(), row.event_id())))
    }

    /// The set of holds was seen: this version of it is empty, or `None` if it is not.
    pub(crate) fn saw_empty_holds(&self, hold_version: Option<i64>) {
        self.nothing_held_at.set(hold_version);
    }

    /// What a claim that saw this set of holds says about rows that it did not read.
    pub(crate) fn seen(&self, hold_version: i64) -> Seen {
        Seen { hold_version, nothing_held: self.nothing_held_at.get() == Some(hold_version) }
    }

    /// Rows were read: the next ones probably have their size.
    pub(crate) fn expect_like<E: Event>(&self, rows: &[E]) {
        if !rows.is_empty() {
            self.row_bytes.set(rows.iter().map(Event::size).sum::<usize>() / rows.len());
        }
    }

    /// A slice did not come through, perhaps because it was too much for the network: the next one is smaller.
    pub(crate) fn expect_larger(&self, bytes_max: usize) {
        self.row_bytes.set(self.row_bytes.get().saturating_mul(4).min(bytes_max));
    }

    /// How many rows probably fit into so many bytes.
    pub(crate) fn expected(&self, bytes: usize) -> usize {
        (bytes / self.row_bytes.get().max(1)).max(1)
    }
}
