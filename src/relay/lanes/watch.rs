//! How the scout waits while there is nothing to publish: the server checks for new rows and answers when there is one.
//!
//! A check of the server costs about a tenth of a scan and nothing in the relay, so it can be repeated at short intervals. The
//! answer is only a hint: the scout scans after each one, and at least every [`SCAN_EVERY`]. Rows that no check notices
//! therefore wait at most that long: those that are reset to unsent, and those that are committed with a lower id than rows
//! that another relay has read.

use crate::relay::failure::{Fault, FaultKind};
use crate::relay::lanes::marks::Marks;
use crate::relay::lanes::seen::SeenIds;
use std::time::Duration;
use tokio::time::Instant;

/// The longest time without a scan.
pub(crate) const SCAN_EVERY: Duration = Duration::from_millis(500);
/// The longest wait for one answer. Operators often let PostgreSQL log statements that take 100 ms or longer.
pub(crate) const AT_MOST: Duration = Duration::from_millis(90);
/// The time between the first two checks after a scan.
const FIRST: Duration = Duration::from_millis(1);
/// The maximum number of gaps to check. Each is one index lookup per check.
const GAPS_MAX: usize = 100;
/// How long the scout only scans after an answer without reason: another relay publishes what arrives.
const PAUSE: Duration = Duration::from_secs(1);
/// The same after an error.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(60);

/// What the server waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct Watch {
    /// A row with a greater id. If this is `None`, the server answers at once.
    pub highest: Option<i64>,
    /// A row with one of these ids.
    pub gaps: Vec<i64>,
    /// Another basis.
    pub basis: i64,
    /// The time between the first two checks. It doubles up to `every`.
    pub first: Duration,
    /// The longest time between two checks.
    pub every: Duration,
    /// The end of the wait.
    pub at_most: Duration,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// The highest id of a row in the outbox.
    pub highest: i64,
    /// Whether there was something new.
    pub is_new: bool,
}

/// Decides whether the scout waits for an answer of the server, and for what.
pub(crate) struct Watcher {
    /// The highest id in the last answer.
    answered: Option<i64>,
    /// Whether the last answer reported something new.
    was_new: bool,
    /// The highest id and the gaps that were known before the last scan. A new row has a greater id, or is in a gap.
    known: Option<(Option<i64>, Vec<i64>)>,
    /// The basis of the last scan, if it covered all lanes and found nothing.
    basis: Option<i64>,
    not_before: Option<Instant>,
    is_refused: bool,
}

impl Watcher {
    pub(crate) fn new() -> Watcher {
        Watcher {
            answered: None,
            was_new: false,
            known: None,
            basis: None,
            not_before: None,
            is_refused: false,
        }
    }

    /// Notes what is known before a scan is sent, because rows may be committed during it.
    pub(crate) fn scans(&mut self, marks: &mut Marks) {
        let seen = marks.search();
        let highest = self.answered.or_else(|| seen.as_ref().map(SeenIds::highest));
        // If another relay has read higher ids, this one does not know their gaps.
        let knows_gaps = seen.as_ref().is_some_and(|seen| Some(seen.highest()) >= highest);
        let gaps = seen.filter(|_| knows_gaps).map(|seen| seen.gaps()).filter(|gaps| gaps.len() <= GAPS_MAX);
        // The rows of an excepted transaction are not in the gaps. Only a scan notices that it has ended.
        let excepts = !marks.fence().excepted().xids.is_empty();
        self.known = (!excepts).then(|| (highest, gaps.unwrap_or_default()));
        self.basis = None;
    }

    /// The scan has covered all lanes and found nothing.
    pub(crate) fn found_nothing(&mut self, basis: i64) {
        self.basis = Some(basis);
        if std::mem::take(&mut self.was_new) {
            self.not_before = Some(Instant::now() + PAUSE);
        }
    }

    /// The scan has found rows, or did not cover all lanes.
    pub(crate) fn found_work(&mut self) {
        (self.answered, self.was_new, self.basis) = (None, false, None);
    }

    /// What to wait for next. `None` if the scout has to scan.
    pub(crate) fn next(&self, every: Duration) -> Option<Watch> {
        if every >= AT_MOST || self.not_before.is_some_and(|at| at > Instant::now()) {
            return None;
        }
        let ((highest, gaps), basis) = (self.known.clone()?, self.basis?);
        Some(Watch { highest, gaps, basis, first: FIRST.min(every), every, at_most: AT_MOST })
    }

    /// Notes the answer. An error only means that the scout scans, unless the connection is lost.
    pub(crate) fn answered(&mut self, watch: &Watch, answer: Result<Watched, Fault>) -> Result<(), Fault> {
        self.basis = None;
        match answer {
            Ok(watched) => {
                self.answered = Some(watched.highest);
                self.was_new = watched.is_new && watch.highest.is_some();
                Ok(())
            }
            Err(fault) if fault.kind == FaultKind::Unavailable => Err(fault),
            // The scan reports that the table is locked.
            Err(fault) if fault.kind == FaultKind::Contended => {
                self.not_before = Some(Instant::now() + PAUSE);
                Ok(())
            }
            Err(fault) => {
                self.not_before = Some(Instant::now() + PAUSE_AFTER_ERROR);
                if !std::mem::replace(&mut self.is_refused, true) {
                    tracing::warn!(
                        code = "wait_refused",
                        "postgres refused to wait for events, polling instead: {fault}"
                    );
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::outbox::ServerId;

    const EVERY: Duration = Duration::from_millis(10);

    /// Marks after these ids were read, with the fence at the first one.
    fn marks(ids: &[i64]) -> Marks {
        let mut marks = Marks::new();
        marks.note_server(ServerId { connection: 1, started_us: 1, backend: 1 });
        let epoch = marks.epoch();
        marks.note_ids(epoch, ids[..1].iter().copied());
        marks.list_writers(ids[0], Vec::new());
        marks.note_ids(epoch, ids.iter().copied());
        marks
    }

    fn answer(highest: i64, is_new: bool) -> Result<Watched, Fault> {
        Ok(Watched { highest, is_new })
    }

    #[tokio::test(start_paused = true)]
    async fn it_waits_for_what_is_unknown_before_an_empty_scan_of_all_lanes() {
        let (mut watcher, mut marks) = (Watcher::new(), marks(&[5, 8]));
        assert_eq!(watcher.next(EVERY), None, "before the first scan");
        watcher.scans(&mut marks);
        assert_eq!(watcher.next(EVERY), None, "during a scan");
        watcher.found_nothing(3);
        let watch = watcher.next(EVERY).unwrap();
        let expected = Watch {
            highest: Some(8),
            gaps: vec![6, 7],
            basis: 3,
            first: FIRST,
            every: EVERY,
            at_most: AT_MOST,
        };
        assert_eq!(watch, expected);
        assert_eq!(watcher.next(AT_MOST), None, "the scans are rare enough");
        watcher.answered(&watch, answer(8, false)).unwrap();
        assert_eq!(watcher.next(EVERY), None, "each answer is followed by a scan");
        watcher.scans(&mut marks);
        watcher.found_work();
        assert_eq!(watcher.next(EVERY), None);
    }

    #[tokio::test(start_paused = true)]
    async fn it_asks_for_the_highest_id_if_it_knows_none_or_another_relay_reads() {
        let (mut watcher, mut unknown) = (Watcher::new(), Marks::new());
        watcher.scans(&mut unknown);
        watcher.found_nothing(0);
        let watch = watcher.next(EVERY).unwrap();
        assert_eq!((watch.highest, watch.gaps.len()), (None, 0));
        watcher.answered(&watch, answer(20, true)).unwrap();
        watcher.scans(&mut marks(&[5, 8]));
        watcher.found_nothing(0);
        let watch = watcher.next(EVERY).unwrap();
        assert_eq!((watch.highest, watch.gaps.len()), (Some(20), 0), "the first answer has no reason");
        watcher.answered(&watch, answer(21, true)).unwrap();
        watcher.scans(&mut unknown);
        watcher.found_nothing(0);
        assert_eq!(watcher.next(EVERY), None, "another relay has published the row");
        tokio::time::advance(PAUSE).await;
        assert_eq!(watcher.next(EVERY).unwrap().highest, Some(21));
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_is_no_fault_unless_the_connection_is_lost() {
        let fault = |kind| Fault { kind, doing: "testing", message: String::new() };
        let (mut watcher, mut marks) = (Watcher::new(), marks(&[5]));
        let mut watched = |watcher: &mut Watcher, kind| {
            watcher.scans(&mut marks);
            watcher.found_nothing(0);
            let watch = watcher.next(EVERY).unwrap();
            watcher.answered(&watch, Err(fault(kind)))
        };
        assert!(watched(&mut watcher, FaultKind::Unavailable).is_err());
        assert!(watched(&mut watcher, FaultKind::TimedOut).is_ok());
        watcher.scans(&mut self::marks(&[5]));
        watcher.found_nothing(0);
        assert_eq!(watcher.next(EVERY), None);
        tokio::time::advance(PAUSE_AFTER_ERROR).await;
        assert!(watcher.next(EVERY).is_some());
    }
}
