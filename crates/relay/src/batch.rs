//! One batch: the rows of a claim, and the fate of each.
//!
//! Each row of a [`Batch`] has one [`Fate`]:
//!
//! | Fate | Meaning | Next fate | When |
//! |---|---|---|---|
//! | `Open` | not sent, or its outcome is unknown | `InFlight` | the session sends it |
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

use crate::memory::UNKNOWN_HOLDS;
use crate::outbox::RejectedRow;
use crate::{Epoch, Event, LANES, Lane, OnRejected, ReadEnd, Rejection};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// The rows of one claim, lane by lane, by id within a lane.
pub struct Batch<E> {
    rows: Vec<E>,
    fates: Vec<Fate>,
    rejections: Vec<(String, Rejection)>,
    on_rejected: OnRejected,
    /// After this many invalid rows of a topic in a row, the next one holds the topic.
    pub(crate) invalid_before_hold: usize,
    /// Keys that wait behind a rejected row of this batch, with the index of the first such row.
    blocked_keys: HashMap<Vec<u8>, usize>,
    pub(crate) bytes: usize,
    /// The number of rows that were acknowledged in an earlier batch, whose settlement was lost.
    pub(crate) recovered: usize,
    /// The set of holds in the read's snapshot; [`UNKNOWN_HOLDS`] if no read has succeeded.
    pub(crate) hold_version: i64,
    pub(crate) epoch: Epoch,
    /// The maximum number of rows to read from each lane of the claim. No limit for lanes without an entry.
    shares: Vec<usize>,
    end: ReadEnd,
    /// The number of rows of the first read. The others belong to a flow, by id.
    read: Option<usize>,
}

impl<E: Event> Batch<E> {
    pub fn new(on_rejected: OnRejected) -> Batch<E> {
        Batch {
            rows: Vec::new(),
            fates: Vec::new(),
            rejections: Vec::new(),
            on_rejected,
            invalid_before_hold: usize::MAX,
            blocked_keys: HashMap::new(),
            bytes: 0,
            recovered: 0,
            hold_version: UNKNOWN_HOLDS,
            epoch: Epoch::NONE,
            shares: Vec::new(),
            end: ReadEnd::More,
            read: None,
        }
    }

    /// Sets after how many invalid rows of a topic in a row the next one holds the topic. A blocked key waits anyway.
    pub(crate) fn holding_after(self, rows: u32) -> Batch<E> {
        let holds = self.on_rejected == OnRejected::DeadLetter;
        Batch { invalid_before_hold: if holds { rows as usize } else { usize::MAX }, ..self }
    }

    /// Sets the maximum number of rows that the read returns from each lane of the claim.
    pub fn set_shares(&mut self, shares: impl Iterator<Item = usize>) {
        self.shares = shares.collect();
    }

    /// Append the next slice of the read here, then call [`Batch::appended`].
    pub fn rows_mut(&mut self) -> &mut Vec<E> {
        &mut self.rows
    }

    /// Accounts for the appended rows, and returns the index of the first of them.
    pub fn appended(&mut self, end: ReadEnd) -> usize {
        let from = self.fates.len();
        self.bytes += self.rows[from..].iter().map(Event::size).sum::<usize>();
        self.fates.resize(self.rows.len(), Fate::Open);
        self.end = end;
        from
    }

    /// Appends rows of a flow, and returns the index of the first of them. The end remains that of the first read.
    pub(crate) fn extend(&mut self, rows: Vec<E>) -> usize {
        self.rows.extend(rows);
        self.appended(self.end)
    }

    /// Whether the read returned every publishable row of these lanes.
    pub(crate) fn is_complete(&self, lanes: &[Lane]) -> bool {
        self.end == ReadEnd::Complete && self.coverage(lanes).iter().all(|coverage| !coverage.cut)
    }

    /// The rows from now on belong to a flow, whose reads have no shares and no order of lanes.
    pub(crate) fn flows(&mut self) {
        self.read = Some(self.rows.len());
    }

    /// Ends the read early. Later rows belong to another batch.
    pub(crate) fn cut(&mut self) {
        self.end = ReadEnd::Cut;
    }

    pub fn rows(&self) -> &[E] {
        &self.rows
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn fate(&self, index: usize) -> Fate {
        self.fates[index]
    }

    /// Sets any fate but those of rejected rows.
    pub(crate) fn set(&mut self, index: usize, fate: Fate) {
        self.fates[index] = fate;
    }

    pub(crate) fn rejected(&mut self, index: usize, topic: &str, rejection: Rejection) {
        let reason = self.rejections.len() as u32;
        self.rejections.push((topic.to_owned(), rejection));
        self.fates[index] = match self.on_rejected {
            OnRejected::DeadLetter => Fate::Rejected(reason),
            OnRejected::BlockKey => {
                let first = self.blocked_keys.entry(self.rows[index].key().to_vec()).or_insert(index);
                *first = index.min(*first);
                Fate::Blocked(reason)
            }
        };
    }

    /// Whether an earlier row of the same key was rejected and blocks the key, so that this row has to wait.
    pub(crate) fn is_blocked(&self, index: usize) -> bool {
        let first = || self.blocked_keys.get(self.rows[index].key());
        !self.blocked_keys.is_empty() && first().is_some_and(|first| *first < index)
    }

    pub(crate) fn has_refused(&self) -> bool {
        !self.rejections.is_empty() || self.has_suspects()
    }

    pub(crate) fn has_suspects(&self) -> bool {
        self.fates.contains(&Fate::Suspect)
    }

    pub fn sent(&self) -> impl Iterator<Item = &E> {
        self.sent_in(0..self.rows.len())
    }

    /// The index of the first row from this one on that is not acknowledged.
    pub(crate) fn first_unacknowledged(&self, from: usize) -> usize {
        let waits = self.fates[from..].iter().position(|fate| *fate != Fate::Acknowledged);
        waits.map_or(self.rows.len(), |rows| from + rows)
    }

    pub(crate) fn undecided(&self, range: Range<usize>) -> usize {
        self.fates[range].iter().filter(|fate| fate.is_undecided()).count()
    }

    pub(crate) fn sent_in(&self, range: Range<usize>) -> impl Iterator<Item = &E> {
        self.rows[range.clone()]
            .iter()
            .zip(&self.fates[range])
            .filter(|(_, fate)| **fate == Fate::Acknowledged)
            .map(|(row, _)| row)
    }

    pub(crate) fn dead_letters(&self) -> impl Iterator<Item = RejectedRow<'_, E>> {
        self.rows.iter().zip(&self.fates).filter_map(move |(row, fate)| match fate {
            Fate::Rejected(reason) => Some(self.rejected_row(row, *reason)),
            _ => None,
        })
    }

    /// The rows whose blocks are recorded. A block hides every unsent row of its key, including earlier ones. A row therefore
    /// blocks its key only if the settlement leaves no earlier row of the key unsent. If not, the row is claimed again. A
    /// settlement that skips locked rows may leave acknowledged rows unsent.
    pub(crate) fn blocked(&self, around_locks: bool) -> impl Iterator<Item = RejectedRow<'_, E>> {
        let mut unsent: HashSet<&[u8]> = HashSet::new();
        let rows = if self.blocked_keys.is_empty() { 0 } else { self.rows.len() };
        self.rows[..rows].iter().zip(&self.fates).filter_map(move |(row, fate)| {
            let stays_unsent = fate.stays_unsent() || (*fate == Fate::Acknowledged && around_locks);
            let is_first = stays_unsent && unsent.insert(row.key());
            match fate {
                Fate::Blocked(reason) if is_first => Some(self.rejected_row(row, *reason)),
                _ => None,
            }
        })
    }

    fn rejected_row<'a>(&'a self, row: &'a E, reason: u32) -> RejectedRow<'a, E> {
        let (topic, why) = &self.rejections[reason as usize];
        RejectedRow { row, topic, why }
    }

    /// How far the batch went in each lane of the claim. `lanes` is in the order of the read.
    pub fn coverage(&self, lanes: &[Lane]) -> Vec<Coverage> {
        let mut last_read = [None; LANES];
        let mut rows = [0; LANES];
        let mut first_open = [None; LANES];
        for (index, (row, fate)) in self.rows.iter().zip(&self.fates).enumerate() {
            let lane = row.lane().index();
            last_read[lane] = last_read[lane].max(Some(row.id()));
            rows[lane] += usize::from(self.read.is_none_or(|read| index < read));
            if fate.stays_unsent() {
                first_open[lane] = Some(first_open[lane].map_or(row.id(), |id: i64| id.min(row.id())));
            }
        }
        // A read that was cut has finished all lanes before the one of its last row.
        let finished = match (self.end, self.rows.last()) {
            (ReadEnd::Complete, _) => lanes.len(),
            (_, None) => 0,
            (_, Some(row)) => lanes.iter().position(|&lane| lane == row.lane()).unwrap_or(0),
        };
        let at_share = |position: usize, lane: Lane| {
            self.shares.get(position).is_some_and(|share| rows[lane.index()] >= *share)
        };
        let coverage = |(position, &lane): (usize, &Lane)| Coverage {
            lane,
            last_read: last_read[lane.index()],
            first_open: first_open[lane.index()],
            cut: position >= finished || at_share(position, lane),
            used_share: self.end == ReadEnd::Complete && at_share(position, lane),
        };
        lanes.iter().enumerate().map(coverage).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage {
    pub lane: Lane,
    pub last_read: Option<i64>,
    pub first_open: Option<i64>,
    /// There may be more rows after `last_read`.
    pub cut: bool,
    /// The lane used its whole share while the batch still had room.
    pub used_share: bool,
}

impl Coverage {
    /// Nothing was read of this lane.
    pub(crate) fn unread(lane: Lane) -> Coverage {
        Coverage { lane, last_read: None, first_open: None, cut: true, used_share: false }
    }

    pub(crate) fn has_more(&self) -> bool {
        self.cut || self.first_open.is_some()
    }

    /// Every unsent row from the mark up to this id was read.
    pub(crate) fn covers_to(&self) -> Option<i64> {
        if self.cut { self.last_read } else { Some(i64::MAX) }
    }
}

/// The table at the top of this file explains each of them. The numbers are indexes into `rejections`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Open,
    InFlight,
    Acknowledged,
    Rejected(u32),
    Blocked(u32),
    Suspect,
}

impl Fate {
    /// Whether the row was not sent, or its outcome is unknown.
    pub(crate) fn is_undecided(self) -> bool {
        matches!(self, Fate::Open | Fate::InFlight)
    }

    /// Whether the row is still unsent after a settlement that records every row.
    pub(crate) fn stays_unsent(self) -> bool {
        match self {
            Fate::Open | Fate::InFlight | Fate::Suspect | Fate::Blocked(_) => true,
            Fate::Acknowledged | Fate::Rejected(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Row;

    fn coverage_of(rows: [Row; 2], share: usize) -> Coverage {
        let mut batch = Batch::new(OnRejected::DeadLetter);
        batch.set_shares([share].into_iter());
        batch.rows_mut().extend(rows);
        batch.appended(ReadEnd::Complete);
        batch.coverage(&[Row(1).lane()])[0]
    }

    #[test]
    fn a_lane_that_returned_its_whole_share_may_have_more() {
        let coverage = coverage_of([Row(1), Row(2)], 2);
        assert!(coverage.cut && coverage.used_share, "{coverage:?}");
        assert_eq!(coverage.covers_to(), Some(2), "later rows are unknown");
    }

    #[test]
    fn a_lane_that_returned_less_than_its_share_has_no_more() {
        let coverage = coverage_of([Row(1), Row(2)], 3);
        assert!(!coverage.cut && !coverage.used_share, "{coverage:?}");
        assert_eq!(coverage.covers_to(), Some(i64::MAX));
    }

    /// Three rows of one key, with these refused.
    fn refused(indices: &[usize]) -> Batch<Row> {
        let mut batch = Batch::new(OnRejected::BlockKey);
        batch.rows_mut().extend([Row(1), Row(2), Row(3)]);
        batch.appended(ReadEnd::Complete);
        for index in indices {
            let rejection = Rejection { reason: "invalid-headers", error: String::new() };
            batch.rejected(*index, "events.order", rejection);
        }
        batch
    }

    fn blocked(batch: &Batch<Row>, around_locks: bool) -> Vec<i64> {
        batch.blocked(around_locks).map(|rejected| rejected.row.0).collect()
    }

    #[test]
    fn only_the_first_unsent_row_of_a_key_blocks_it() {
        let mut batch = refused(&[2, 1]);
        assert_eq!(blocked(&batch, false), [0i64; 0], "row 1 is open");
        batch.set(0, Fate::Suspect);
        assert_eq!(blocked(&batch, false), [0i64; 0], "row 1 is to be judged");
        batch.set(0, Fate::Acknowledged);
        assert_eq!(blocked(&batch, false), [2], "row 3 waits behind row 2");
    }

    #[test]
    fn an_acknowledged_row_that_may_be_skipped_as_locked_prevents_a_block() {
        let mut batch = refused(&[1]);
        batch.set(0, Fate::Acknowledged);
        assert_eq!(blocked(&batch, true), [0i64; 0]);
        assert_eq!(blocked(&refused(&[0]), true), [1], "no row precedes it");
    }

    #[test]
    fn only_rows_after_a_refused_row_wait_for_it() {
        let batch = refused(&[1]);
        assert_eq!([0, 1, 2].map(|index| batch.is_blocked(index)), [false, false, true]);
    }
}
