//! What a relay knows about rows beyond the batch they came with. All of it is in memory only.
//!
//! | What | Begins | Effect | Ends |
//! |---|---|---|---|
//! | acknowledged set | a settlement is not confirmed | a claim that reads the row settles it without sending it | a claim covers the row, or a COMMIT records it |
//! | probing | the ack of a probe is late | a claim that reads the row fails and is repeated | the ack arrives, or the probe times out |
//! | streaks | Kafka refuses a row alone | rows of this size are judged alone; after several rows the topic is held | the topic accepts a row |
//!
//! Holds, blocked keys and pauses are rows of the database, which the claim's own statement reads.
//!
//! The acknowledged set is the whole recovery path: a claim that reads such a row again settles it without publishing it. Rows
//! are identified by id *and* event_id, because ids are issued again after a failover.
//!
//! A row that has since been held, blocked or paused is not read although it is unsent. An entry is therefore kept after a claim
//! that does not read its row, unless that claim saw the same set of holds as the one that published it, or no holds.
//!
//! The set is bounded: the rows of a lane are claimed again before later ones, so each lane has at most one batch here, plus
//! one for each failed settlement during which the set of holds changed, until nothing is held any more.

use crate::holds::KnownHolds;
use crate::{Batch, Coverage, Event, Fate, FaultKind, LANES, Lane, PostgresFault};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use uuid::Uuid;

/// The expected size of a row before any row was read.
const FIRST_ROW_BYTES: usize = 16 * 1024;
/// The maximum number of rows per claim until a settlement has recorded all its rows as sent. If PostgreSQL never records any, for
/// example because of a constraint, these rows are published again after each restart.
const UNPROVEN_ROWS_MAX: usize = 100;

#[derive(Default)]
pub struct Memory {
    pub(crate) holds: KnownHolds,
    pub acknowledged: RefCell<Acknowledged>,
    pub streaks: Streaks,
    /// Whether PostgreSQL refused the latest settlement.
    pub(crate) settling_is_refused: Cell<bool>,
    /// Whether PostgreSQL has ever recorded all sent rows of one.
    pub(crate) has_recorded: Cell<bool>,
    /// Rows of probes in flight without their lane locks, by id and event_id, with their lanes.
    probing: RefCell<HashMap<(i64, Uuid), Lane>>,
    /// The version of the last empty set of holds.
    pub(crate) nothing_held_at: Cell<Option<i64>>,
    /// The usual size of a row, which decides how many to read at once.
    row_bytes: Cell<usize>,
}

impl Memory {
    pub(crate) fn new() -> Memory {
        Memory { row_bytes: Cell::new(FIRST_ROW_BYTES), ..Memory::default() }
    }

    /// Marks the rows from this index on that are in the acknowledged set.
    pub(crate) fn mark_acknowledged<E: Event>(&self, batch: &mut Batch<E>, from: usize) {
        let acknowledged = self.acknowledged.borrow();
        if acknowledged.is_empty() {
            return;
        }
        for index in from..batch.len() {
            if acknowledged.contains(&batch.rows()[index]) {
                batch.set(index, Fate::Acknowledged);
                batch.recovered += 1;
            }
        }
    }

    /// Records the result of recording sent rows. Until it succeeds, claims read no more rows than wait to be recorded, because
    /// each other row that they published would be published again after a restart.
    pub(crate) fn note_settlement(&self, fault: Option<&PostgresFault>) {
        match fault.map(|fault| fault.kind) {
            None => self.settling_is_refused.set(false),
            Some(FaultKind::Refused) => self.settling_is_refused.set(true),
            Some(_) => {}
        }
    }

    /// Whether acknowledged rows wait to be recorded, perhaps because they are locked. Does not count those that no claim reads.
    pub(crate) fn waits_for_locks(&self) -> bool {
        self.acknowledged.borrow().lanes().next().is_some()
    }

    /// The maximum number of rows of a claim, given the limit that applies once rows have been recorded as sent.
    pub(crate) fn rows_max(&self, limit: usize) -> usize {
        if self.has_recorded.get() { limit } else { limit.min(UNPROVEN_ROWS_MAX) }
    }

    /// The maximum number of rows to read from each of these lanes while settlements are refused: the rows that wait to be
    /// recorded, or one row.
    pub(crate) fn shares_if_refused(&self, lanes: &[Lane]) -> Option<Vec<usize>> {
        let acknowledged = self.acknowledged.borrow();
        let share = |lane: &Lane| acknowledged.readable(*lane).max(1);
        self.settling_is_refused.get().then(|| lanes.iter().map(share).collect())
    }

    /// Records that a probe has this row in flight without its lane lock.
    pub(crate) fn begin_probing<E: Event>(&self, row: &E) {
        self.probing.borrow_mut().insert((row.id(), row.event_id()), row.lane());
    }

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

/// The version for rows of a read that failed, and for rows that a probe published: the set of holds is unknown, so it is never the
/// same as another one.
pub const UNKNOWN_HOLDS: i64 = -1;

/// Acknowledged rows whose settlement is not confirmed.
pub struct Acknowledged {
    lanes: Vec<HashMap<i64, Entry>>,
}

#[derive(Clone, Copy)]
struct Entry {
    event_id: Uuid,
    hold_version: i64,
    /// A claim did not read the row, so its topic may be held. The row is read again when the hold ends.
    hidden: bool,
}

/// The set of holds under which a claim read rows.
#[derive(Clone, Copy, Debug)]
pub struct HoldsSeen {
    /// The version of the set, or [`UNKNOWN_HOLDS`].
    pub hold_version: i64,
    /// Whether the set is known to be empty.
    pub nothing_held: bool,
}

impl Acknowledged {
    /// Adds acknowledged rows whose settlement failed or may have failed.
    pub fn keep<'a, E: Event + 'a>(&mut self, rows: impl Iterator<Item = &'a E>, hold_version: i64) {
        for row in rows {
            let lane = &mut self.lanes[row.lane().index()];
            let event_id = row.event_id();
            // A settlement without a read, as a probe's, does not show that a claim would read the row now.
            let known = lane.get(&row.id()).filter(|known| known.event_id == event_id);
            let hidden = hold_version == UNKNOWN_HOLDS && known.is_some_and(|known| known.hidden);
            lane.insert(row.id(), Entry { event_id, hold_version, hidden });
        }
    }

    /// Removes rows that a confirmed COMMIT has recorded as sent. Otherwise an operator's `sent_at = NULL` would be ignored.
    pub(crate) fn settled<'a, E: Event + 'a>(&mut self, rows: impl Iterator<Item = &'a E>) {
        for row in rows {
            if self.contains(row) {
                self.lanes[row.lane().index()].remove(&row.id());
            }
        }
    }

    pub fn contains<E: Event>(&self, row: &E) -> bool {
        let entry = self.lanes[row.lane().index()].get(&row.id());
        entry.is_some_and(|entry| entry.event_id == row.event_id())
    }

    /// Removes the rows that a claim covered. Those that it read, `rows`, are settled, or the caller adds them again. Others
    /// were settled before, unless they may be held. If they stayed, an operator's `sent_at = NULL` would be ignored.
    pub fn forget<E: Event>(&mut self, coverage: &[Coverage], rows: &[E], seen: HoldsSeen) {
        if self.is_empty() {
            return;
        }
        let known = seen.hold_version != UNKNOWN_HOLDS;
        let read: HashSet<i64> = rows.iter().map(Event::id).collect();
        for coverage in coverage {
            if let Some(covers_to) = coverage.covers_to() {
                self.lanes[coverage.lane.index()].retain(|id, entry| {
                    let shows = seen.nothing_held || known && entry.hold_version == seen.hold_version;
                    entry.hidden |= *id <= covers_to;
                    *id > covers_to || !(shows || read.contains(id))
                });
            }
        }
    }

    /// The rows that no claim has read, although it covered them: held, or settled.
    pub(crate) fn hidden(&self) -> (Vec<i64>, Vec<Uuid>) {
        let hidden = self.lanes.iter().flatten().filter(|(_, entry)| entry.hidden);
        hidden.map(|(id, entry)| (*id, entry.event_id)).unzip()
    }

    /// Removes those of these hidden rows that are settled: all but `unsent` in a later snapshot. If they stayed, an operator's
    /// `sent_at = NULL` would be ignored for as long as anything is held.
    pub(crate) fn forget_settled(&mut self, ids: &[i64], event_ids: &[Uuid], unsent: &HashSet<i64>) {
        let asked: HashMap<i64, Uuid> = ids.iter().copied().zip(event_ids.iter().copied()).collect();
        for lane in &mut self.lanes {
            lane.retain(|id, entry| {
                !entry.hidden || unsent.contains(id) || asked.get(id) != Some(&entry.event_id)
            });
        }
    }

    pub fn len(&self) -> usize {
        self.lanes.iter().map(HashMap::len).sum()
    }

    pub fn ids(&self) -> (Vec<i64>, Vec<Uuid>) {
        self.lanes.iter().flatten().map(|(id, entry)| (*id, entry.event_id)).unzip()
    }

    /// How many rows of the lane a claim can read.
    pub(crate) fn readable(&self, lane: Lane) -> usize {
        self.lanes[lane.index()].values().filter(|entry| !entry.hidden).count()
    }

    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(HashMap::is_empty)
    }

    /// The lanes that have rows that are not hidden. They need a claim even if they have no new rows.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = Lane> {
        Lane::all().filter(|lane| self.lanes[lane.index()].values().any(|entry| !entry.hidden))
    }
}

impl Default for Acknowledged {
    fn default() -> Self {
        Acknowledged { lanes: vec![HashMap::new(); LANES] }
    }
}

/// How many refused rows of a topic are remembered. If there are more, they are forgotten, but still counted.
const ROWS_MAX: usize = 1_000;
/// How many topics are remembered. Invalid names can be any number of different ones.
const STREAKS_MAX: usize = 1_000;

/// Shared by the workers and the prober of one relay. Usually empty. Clones share their content.
#[derive(Clone, Default)]
pub struct Streaks {
    topics: Rc<RefCell<HashMap<String, Streak>>>,
    /// For each topic, the size of the smallest row that was refused because of its size.
    refused_sizes: Rc<RefCell<HashMap<String, usize>>>,
}

/// The rows of a topic that were refused alone, or before they were sent, since the last accepted row.
#[derive(Default)]
struct Streak {
    count: usize,
    /// How many of them were refused before they were sent. They are counted until a row is sent, because Kafka has not
    /// answered yet when the next row of the batch is refused.
    unsent: usize,
    /// The latest of them. A row that is judged again because its rejection could not be recorded counts once.
    latest: HashSet<Uuid>,
}

impl Streaks {
    /// Records a row that was refused alone. `too_large` is its size if that was the reason. Returns how many rows were
    /// refused since the last accepted row.
    pub(crate) fn refused(&self, topic: &str, row: Uuid, too_large: Option<usize>) -> usize {
        if let Some(size) = too_large {
            let mut sizes = self.refused_sizes.borrow_mut();
            if sizes.len() == STREAKS_MAX && !sizes.contains_key(topic) {
                sizes.clear();
            }
            let smallest = sizes.entry(topic.to_owned()).or_insert(size);
            *smallest = size.min(*smallest);
        }
        self.count(topic, row, 0)
    }

    /// Records a row that was refused before it was sent. Returns the same as [`Streaks::refused`].
    pub(crate) fn refused_unsent(&self, topic: &str, row: Uuid) -> usize {
        self.count(topic, row, 1)
    }

    fn count(&self, topic: &str, row: Uuid, unsent: usize) -> usize {
        let mut topics = self.topics.borrow_mut();
        if topics.len() == STREAKS_MAX && !topics.contains_key(topic) {
            topics.clear();
        }
        let rows = topics.entry(topic.to_owned()).or_default();
        if rows.latest.len() == ROWS_MAX && !rows.latest.contains(&row) {
            rows.latest.clear();
        }
        if rows.latest.insert(row) {
            rows.count += 1;
            rows.unsent += unsent;
        }
        rows.count
    }

    /// Records that a row was sent, so the rows before it that were refused unsent show nothing about the topic.
    pub(crate) fn sent(&self, topic: &str) {
        let mut topics = self.topics.borrow_mut();
        let Some(rows) = topics.get_mut(topic) else { return };
        rows.count -= std::mem::take(&mut rows.unsent);
        if rows.count == 0 {
            topics.remove(topic);
        }
    }

    /// Whether no topic has refused a row since it last accepted one.
    pub(crate) fn is_empty(&self) -> bool {
        self.topics.borrow().is_empty()
    }

    /// Records that rows were accepted. `size` is that of the largest, or 0 if it is unknown. If a smaller row was refused before,
    /// the topic's limit was raised. Rows that were refused unsent after these were sent still count.
    pub(crate) fn accepted(&self, topic: &str, size: usize) {
        let mut topics = self.topics.borrow_mut();
        if let Some(rows) = topics.get_mut(topic) {
            rows.count = rows.unsent;
            if rows.count == 0 {
                topics.remove(topic);
            }
        }
        if self.refuse_size(topic, size) {
            self.refused_sizes.borrow_mut().remove(topic);
        }
    }

    /// Whether the topic has refused a row of this size or a smaller one.
    pub(crate) fn refuse_size(&self, topic: &str, size: usize) -> bool {
        self.refused_sizes.borrow().get(topic).is_some_and(|smallest| size >= *smallest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Row;

    /// The coverage of a claim that read all rows of the lane.
    fn whole() -> Coverage {
        Coverage { lane: Row(1).lane(), last_read: Some(9), first_open: None, cut: false, used_share: false }
    }

    fn after_claim(read: &[Row], seen: HoldsSeen) -> Acknowledged {
        after_claim_of(3, read, seen)
    }

    fn after_claim_of(kept_under: i64, read: &[Row], seen: HoldsSeen) -> Acknowledged {
        let mut acknowledged = Acknowledged::default();
        acknowledged.keep([Row(1), Row(2)].iter(), kept_under);
        acknowledged.forget(&[whole()], read, seen);
        acknowledged
    }

    #[test]
    fn a_row_that_a_claim_did_not_read_is_removed_if_nothing_new_is_held() {
        assert!(after_claim(&[Row(1)], HoldsSeen { hold_version: 3, nothing_held: false }).is_empty());
        assert!(after_claim(&[Row(1)], HoldsSeen { hold_version: 4, nothing_held: true }).is_empty());
    }

    #[test]
    fn a_row_that_may_be_held_is_kept_and_needs_no_claim() {
        let acknowledged = after_claim(&[Row(1)], HoldsSeen { hold_version: 4, nothing_held: false });
        assert!(!acknowledged.contains(&Row(1)), "it was read, so it is settled now");
        assert!(acknowledged.contains(&Row(2)));
        assert_eq!(acknowledged.lanes().count(), 0);
        assert_eq!(acknowledged.readable(Row(2).lane()), 0, "a claim would read another row for it");
    }

    /// Otherwise workers would claim its lane for as long as another session has locked the row.
    #[test]
    fn a_row_that_a_probe_cannot_settle_needs_no_claim_once_a_claim_did_not_read_it() {
        let mut acknowledged = Acknowledged::default();
        acknowledged.keep([Row(1)].iter(), UNKNOWN_HOLDS);
        assert_eq!(acknowledged.lanes().count(), 1, "it may be the last row of its lane");
        let seen = HoldsSeen { hold_version: 4, nothing_held: false };
        acknowledged.forget::<Row>(&[whole()], &[], seen);
        acknowledged.keep([Row(1)].iter(), UNKNOWN_HOLDS);
        assert_eq!(acknowledged.lanes().count(), 0);
        acknowledged.keep([Row(1)].iter(), 4);
        assert_eq!(acknowledged.lanes().count(), 1, "a claim has read it");
    }

    #[test]
    fn two_failed_reads_do_not_show_that_nothing_new_is_held() {
        let seen = HoldsSeen { hold_version: UNKNOWN_HOLDS, nothing_held: false };
        assert!(after_claim_of(UNKNOWN_HOLDS, &[Row(1)], seen).contains(&Row(2)));
    }

    fn row(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    #[test]
    fn rejections_in_a_row_are_counted_until_one_is_accepted() {
        let streaks = Streaks::default();
        assert_eq!(streaks.refused("a", row(1), None), 1);
        assert_eq!(streaks.refused("a", row(2), None), 2);
        assert_eq!(streaks.refused("b", row(3), None), 1);
        streaks.accepted("a", 10);
        assert_eq!(streaks.refused("a", row(4), None), 1);
    }

    #[test]
    fn a_row_that_is_judged_twice_is_counted_once() {
        let streaks = Streaks::default();
        assert_eq!(streaks.refused("a", row(1), None), 1);
        assert_eq!(streaks.refused("a", row(1), None), 1);
    }

    /// The limit can be a million.
    #[test]
    fn more_rows_are_counted_than_remembered() {
        let streaks = Streaks::default();
        for number in 1..=5_000 {
            let row = row(number as u128);
            assert_eq!(streaks.refused("a", row, None), number);
            assert_eq!(streaks.refused("a", row, None), number, "judged again");
        }
        assert!(streaks.topics.borrow()["a"].latest.len() <= ROWS_MAX);
    }

    #[test]
    fn rows_refused_unsent_are_counted_until_one_is_sent() {
        let streaks = Streaks::default();
        assert_eq!(streaks.refused("a", row(1), None), 1);
        assert_eq!(streaks.refused_unsent("a", row(2)), 2);
        assert_eq!(streaks.refused_unsent("a", row(3)), 3);
        streaks.sent("b");
        assert_eq!(streaks.refused_unsent("a", row(4)), 4);
        streaks.sent("a");
        assert_eq!(streaks.refused_unsent("a", row(5)), 2, "Kafka has not accepted the row yet");
        streaks.accepted("a", 10);
        assert_eq!(streaks.refused_unsent("a", row(6)), 2, "row 5 was not sent before the accepted one");
        streaks.sent("a");
        assert!(streaks.topics.borrow().is_empty());
    }

    #[test]
    fn any_number_of_topics_takes_bounded_memory() {
        let streaks = Streaks::default();
        for number in 0..10 * STREAKS_MAX {
            streaks.refused_unsent(&format!("a b {number}"), row(1));
            streaks.refused(&format!("a.{number}"), row(2), Some(500));
        }
        assert!(streaks.topics.borrow().len() <= STREAKS_MAX);
        assert!(streaks.refused_sizes.borrow().len() <= STREAKS_MAX);
    }

    #[test]
    fn a_refused_size_is_kept_when_a_smaller_row_is_accepted() {
        let streaks = Streaks::default();
        streaks.refused("a", row(1), Some(500));
        streaks.accepted("a", 499);
        assert!(streaks.refuse_size("a", 500));
        assert_eq!(streaks.refused("a", row(2), Some(900)), 1);
        streaks.accepted("a", 500);
        assert!(streaks.topics.borrow().is_empty() && streaks.refused_sizes.borrow().is_empty());
    }

    #[test]
    fn the_smallest_refused_size_counts_until_a_larger_row_is_accepted() {
        let streaks = Streaks::default();
        streaks.refused("a", row(1), Some(500));
        streaks.refused("a", row(2), Some(900));
        streaks.accepted("a", 499);
        let covered = |size| (streaks.refuse_size("a", size), streaks.refuse_size("b", size));
        assert_eq!(
            (covered(499), covered(500), covered(900)),
            ((false, false), (true, false), (true, false))
        );
        streaks.accepted("a", 700);
        assert!(!streaks.refuse_size("a", 900) && streaks.refused_sizes.borrow().is_empty());
    }
}
