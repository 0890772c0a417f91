//! The fence: an id up to which no transaction can commit new rows, except those that it names.
//!
//! A writer takes RowExclusiveLock on the outbox, or on the sequence of the ids, before it draws an id, and keeps it until its
//! transaction ends. Note H, then list the holders of the lock. Once every transaction of that list has ended, no new row with
//! an id <= H can appear.
//!
//! A transaction that stays open is *excepted*: the fence passes without it. Its ids are greater than the fence before it. Reads
//! check in their own snapshots that it is still in progress. If it is not, its rows may be below the marks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;
use tokio::time::Instant;

/// How long the fence waits for a transaction before it passes without it.
const PATIENCE: Duration = Duration::from_secs(1);
/// The maximum number of excepted transactions. Each read checks all of them. If there are more, the fence waits.
const EXCEPTED_MAX: usize = 100;

/// A transaction that holds the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writer {
    /// Its name in `pg_locks`.
    pub name: String,
    /// Its transaction id, if it has one yet. It has one when it has inserted a row.
    pub xid: Option<i64>,
}

/// The excepted transactions when a read is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excepted {
    /// Their transaction ids.
    pub xids: Vec<i64>,
    /// Their rows have greater ids.
    pub floor: i64,
    /// Changes when one of them has ended.
    pub(crate) ended: u64,
}

impl Excepted {
    /// No transaction.
    pub fn none() -> Excepted {
        Excepted { xids: Vec::new(), floor: i64::MAX, ended: 0 }
    }
}

#[derive(Clone, Copy)]
struct Exception {
    /// The rows of the transaction have greater ids.
    below: i64,
    /// When it was first listed.
    since: Instant,
    /// The last list did not contain it.
    missed: bool,
}

/// One fence at a time. It begins with a list of the lock's holders and passes when all of them have ended or are excepted.
pub struct Fence {
    /// No transaction except the excepted ones can commit new rows up to this id.
    passed: i64,
    /// The excepted transactions, by transaction id.
    excepted: BTreeMap<i64, Exception>,
    /// How many times excepted transactions have ended.
    ended: u64,
    high: i64,
    pending: HashMap<String, Option<i64>>,
    begun: Instant,
}

impl Fence {
    pub(crate) fn new() -> Fence {
        Fence {
            passed: i64::MIN,
            excepted: BTreeMap::new(),
            ended: 0,
            high: i64::MIN,
            pending: HashMap::new(),
            begun: Instant::now(),
        }
    }

    /// No transaction except the excepted ones can commit new rows up to this id.
    pub(crate) fn passed(&self) -> i64 {
        self.passed
    }

    /// The excepted transactions.
    pub(crate) fn excepted(&self) -> Excepted {
        Excepted {
            xids: self.excepted.keys().copied().collect(),
            floor: self.excepted.values().map(|exception| exception.below).min().unwrap_or(i64::MAX),
            ended: self.ended,
        }
    }

    /// Whether a transaction of the list, or an excepted one, is still open.
    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty() || !self.excepted.is_empty()
    }

    /// How long the oldest transaction that is still open has been on the list.
    pub(crate) fn waits_for(&self) -> Duration {
        let listed = (!self.pending.is_empty()).then_some(self.begun);
        let since = self.excepted.values().map(|exception| exception.since).chain(listed).min();
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Handles a list of the current holders of the lock. `high` must have been noted before they were listed. If excepted
    /// transactions have ended, returns an id below their rows, which may be below the marks.
    #[must_use]
    pub fn list(&mut self, high: i64, holders: Vec<Writer>) -> Option<i64> {
        let open: BTreeSet<i64> = holders.iter().filter_map(|holder| holder.xid).collect();
        let mut below_rows: Option<i64> = None;
        self.excepted.retain(|xid, its| {
            // While PREPARE TRANSACTION moves its locks, one list may lack its transaction id. Reads check by themselves whether
            // it has ended, so a later list is early enough.
            let has_ended = !open.contains(xid) && its.missed;
            its.missed = !open.contains(xid);
            if has_ended {
                below_rows = Some(below_rows.map_or(its.below, |below| below.min(its.below)));
            }
            !has_ended
        });
        self.ended += u64::from(below_rows.is_some());
        let is_excepted = |holder: &Writer| holder.xid.is_some_and(|xid| self.excepted.contains_key(&xid));
        let holders: Vec<Writer> = holders.into_iter().filter(|holder| !is_excepted(holder)).collect();
        if self.pending.is_empty() {
            (self.high, self.begun) = (high, Instant::now());
            self.pending = holders.into_iter().map(|holder| (holder.name, holder.xid)).collect();
        } else {
            self.update(holders);
        }
        self.except();
        if self.pending.is_empty() {
            self.passed = self.passed.max(self.high);
        }
        below_rows
    }

    /// Removes the transactions that have ended from the list.
    ///
    /// PREPARE TRANSACTION gives a transaction another `virtualtransaction`, "-1/xid". While a session of the list may have
    /// been prepared, every prepared holder counts as one of the list.
    fn update(&mut self, holders: Vec<Writer>) {
        let sessions_left = self.pending.keys().any(|name| !is_prepared(name));
        let listed = |holder: &Writer| {
            self.pending.contains_key(&holder.name) || sessions_left && is_prepared(&holder.name)
        };
        let left = holders.into_iter().filter(listed).map(|holder| (holder.name, holder.xid)).collect();
        self.pending = left;
    }

    /// Excepts the transactions of the list if they have been open for long. Those without a transaction id may still get any.
    fn except(&mut self) {
        let xids: Vec<i64> = self.pending.values().filter_map(|xid| *xid).collect();
        let fits = xids.len() == self.pending.len() && self.excepted.len() + xids.len() <= EXCEPTED_MAX;
        if fits && self.begun.elapsed() >= PATIENCE {
            // None of them had drawn an id when the holders for the fence before this one were listed.
            let exception = Exception { below: self.passed, since: self.begun, missed: false };
            self.excepted.extend(xids.into_iter().map(|xid| (xid, exception)));
            self.pending.clear();
        }
    }
}

fn is_prepared(holder: &str) -> bool {
    holder.starts_with("-1/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    fn holders<const N: usize>(names: [(&str, i64); N]) -> Vec<Writer> {
        names.map(|(name, xid)| Writer { name: name.to_owned(), xid: (xid > 0).then_some(xid) }).into()
    }

    #[tokio::test(start_paused = true)]
    async fn it_passes_when_every_holder_of_the_list_has_ended_despite_later_ones() {
        let mut fence = Fence::new();
        assert_eq!(fence.list(10, holders([("3/7", 1), ("4/9", 2)])), None);
        assert_eq!(fence.passed(), i64::MIN);
        assert_eq!(fence.list(20, holders([("4/9", 2), ("5/1", 3)])), None);
        assert_eq!(fence.passed(), i64::MIN);
        assert_eq!(fence.list(20, holders([("5/1", 3), ("4/10", 4)])), None);
        assert_eq!(fence.passed(), 10, "the H of its list counts");
    }

    #[tokio::test(start_paused = true)]
    async fn it_passes_at_once_without_holders() {
        let mut fence = Fence::new();
        _ = fence.list(10, holders([]));
        assert_eq!((fence.passed(), fence.is_pending()), (10, false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_was_prepared_in_between_has_not_ended() {
        let mut fence = Fence::new();
        _ = fence.list(10, holders([("3/7", 0)]));
        _ = fence.list(10, holders([("-1/800", 0)]));
        assert_eq!(fence.passed(), i64::MIN);
        _ = fence.list(10, holders([("-1/800", 0), ("-1/801", 0)]));
        assert_eq!(fence.passed(), i64::MIN);
        _ = fence.list(10, holders([("-1/801", 0)]));
        assert_eq!(fence.passed(), 10, "801 was prepared when no session of the list was left");
    }

    #[tokio::test(start_paused = true)]
    async fn it_passes_without_a_transaction_that_stays_open() {
        let mut fence = Fence::new();
        _ = fence.list(5, holders([]));
        _ = fence.list(10, holders([("3/7", 70), ("4/9", 0)]));
        advance(PATIENCE).await;
        _ = fence.list(20, holders([("3/7", 70), ("4/9", 0)]));
        assert_eq!(fence.passed(), 5, "one has no transaction id yet");
        assert_eq!(fence.excepted(), Excepted::none());
        _ = fence.list(20, holders([("3/7", 70)]));
        assert_eq!(fence.passed(), 10);
        assert_eq!(fence.excepted(), Excepted { xids: vec![70], floor: 5, ended: 0 });
        _ = fence.list(20, holders([("3/7", 70)]));
        assert_eq!(fence.passed(), 20, "the next fence does not wait for it");
        assert_eq!(fence.list(30, holders([("-1/70", 70)])), None, "a prepared transaction keeps its id");
        assert_eq!(fence.list(30, holders([("3/7", 0)])), None, "its locks may be about to move");
        assert_eq!(fence.list(30, holders([("-1/70", 70)])), None);
        assert_eq!(fence.list(40, holders([])), None, "the next list decides");
        assert_eq!(fence.list(40, holders([("5/2", 71)])), Some(5), "it has ended");
        assert!(fence.is_pending());
        assert_eq!(fence.excepted(), Excepted { ended: 1, ..Excepted::none() });
    }

    #[tokio::test(start_paused = true)]
    async fn the_floor_is_below_the_rows_of_every_excepted_transaction() {
        let mut fence = Fence::new();
        for (high, xid) in [(10, 70), (20, 90)] {
            let open = holders([("3/7", 70), ("4/9", xid)]);
            _ = fence.list(high, open.clone());
            advance(PATIENCE).await;
            _ = fence.list(high, open);
        }
        assert_eq!(fence.excepted(), Excepted { xids: vec![70, 90], floor: i64::MIN, ended: 0 });
        assert_eq!(fence.list(30, holders([("4/9", 90)])), None);
        assert_eq!(fence.list(30, holders([("4/9", 90)])), Some(i64::MIN));
        assert_eq!(fence.excepted(), Excepted { xids: vec![90], floor: 10, ended: 1 });
    }

    #[tokio::test(start_paused = true)]
    async fn it_waits_if_too_many_transactions_stay_open() {
        let open = |count: i64| (0..count).map(|n| Writer { name: format!("{n}/1"), xid: Some(n) }).collect();
        let mut fence = Fence::new();
        _ = fence.list(10, open(EXCEPTED_MAX as i64 + 1));
        advance(PATIENCE).await;
        _ = fence.list(10, open(EXCEPTED_MAX as i64 + 1));
        assert_eq!((fence.passed(), fence.excepted()), (i64::MIN, Excepted::none()));
        _ = fence.list(10, open(EXCEPTED_MAX as i64));
        assert_eq!(fence.passed(), 10);
    }
}
