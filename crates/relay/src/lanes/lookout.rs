//! How the scout finds new rows while every lane is known: it looks for ids that it has not seen, instead of scanning 64 lanes.
//!
//! A look is one probe of the primary key, and names the lanes of the new rows. It proves nothing: a lane in which it finds
//! nothing may have rows that were reset to unsent, or that were committed with a lower id than rows of another relay. Scans,
//! at least every [`SCAN_EVERY`], find those.

use crate::lanes::marks::Marks;
use crate::lanes::seen::SeenIds;
use crate::settings::Limits;
use std::time::Duration;
use tokio::time::Instant;

/// The longest time without a scan.
pub(crate) const SCAN_EVERY: Duration = Duration::from_millis(500);
/// After this time without a new row, the scout looks every `poll_interval`.
const ARRIVING_FOR: Duration = Duration::from_secs(10);
/// The maximum number of gaps to look into. Each is one index probe per look.
const GAPS_MAX: usize = 100;
/// How long the scout only scans after another relay had locked the lanes of new rows: that relay publishes what arrives.
const YIELDS_FOR: Duration = Duration::from_secs(1);

/// What to look for.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    /// Rows with a greater id. If this is `None`, only the highest id is wanted.
    pub above: Option<i64>,
    /// Rows with one of these ids.
    pub gaps: Vec<i64>,
}

/// Decides whether the scout looks for new rows or has to scan.
pub(crate) struct Lookout {
    /// The highest id and the gaps that were known before the last scan, or that a look has returned since. A new row has a
    /// greater id, or is in a gap.
    known: Option<(Option<i64>, Vec<i64>)>,
    /// The basis of the last scan, if since then every unsent row is with a worker or will be found by a look.
    basis: Option<i64>,
    scanned_at: Instant,
    /// When a look last found a new row.
    found_at: Instant,
    not_before: Option<Instant>,
}

impl Lookout {
    pub(crate) fn new() -> Lookout {
        let now = Instant::now();
        Lookout { known: None, basis: None, scanned_at: now, found_at: now, not_before: None }
    }

    /// Notes what is known before a scan is sent, because rows may be committed during it.
    pub(crate) fn scans(&mut self, marks: &mut Marks) {
        let before = self.known.take().and_then(|(highest, _)| highest);
        let seen = marks.search();
        let highest = before.max(seen.as_ref().map(SeenIds::highest));
        // If another relay has read higher ids, this one does not know their gaps.
        let knows_gaps = seen.as_ref().is_some_and(|seen| Some(seen.highest()) >= highest);
        let gaps = seen.filter(|_| knows_gaps).map(|seen| seen.gaps()).filter(|gaps| gaps.len() <= GAPS_MAX);
        // The rows of an excepted transaction are not in the gaps. Only a scan notices that it has ended.
        let excepts = !marks.fence().excepted().xids.is_empty();
        self.known = (!excepts).then(|| (highest, gaps.unwrap_or_default()));
        (self.basis, self.scanned_at) = (None, Instant::now());
    }

    /// The scan has found nothing in all lanes that no worker has.
    pub(crate) fn found_nothing(&mut self, basis: i64) {
        self.basis = Some(basis);
    }

    /// Rows may wait in a lane although no look will find them, so the scout scans until a scan finds nothing.
    pub(crate) fn doubts(&mut self) {
        self.basis = None;
    }

    /// The ids that are known may be issued again.
    pub(crate) fn forget(&mut self) {
        (self.known, self.basis) = (None, None);
    }

    /// Another relay had locked the lanes of new rows.
    pub(crate) fn yields(&mut self) {
        self.basis = None;
        self.not_before = Some(Instant::now() + YIELDS_FOR);
    }

    /// What to look for, and when. `None` if the scout has to scan.
    pub(crate) fn next(&self, limits: &Limits) -> Option<(Look, Duration)> {
        let Limits { poll_interval, look_every, .. } = *limits;
        let now = Instant::now();
        let yields = self.not_before.is_some_and(|at| at > now);
        if yields || self.basis.is_none() || self.scanned_at + SCAN_EVERY.max(poll_interval) <= now {
            return None;
        }
        let (above, gaps) = self.known.clone()?;
        let arriving = self.found_at.elapsed() < ARRIVING_FOR;
        let every = if arriving { poll_interval.min(look_every) } else { poll_interval };
        Some((Look { above, gaps }, every))
    }

    /// Notes the ids that a look has returned, and the basis in its snapshot. Returns whether they are new, and the scout need
    /// not scan.
    pub(crate) fn looked(&mut self, look: &Look, basis: i64, ids: &[i64]) -> bool {
        if self.basis != Some(basis) {
            self.basis = None;
            return false;
        }
        let Some((highest, gaps)) = self.known.as_mut() else { return false };
        let before = highest.unwrap_or(i64::MIN);
        let newest = ids.iter().copied().fold(before, i64::max);
        *highest = Some(newest);
        gaps.retain(|gap| !ids.contains(gap));
        if look.above.is_none() || ids.is_empty() {
            return false;
        }
        // Ids below the newest one may be committed later.
        if newest.saturating_sub(before) <= (GAPS_MAX + ids.len()) as i64 {
            gaps.extend((before..newest).skip(1).filter(|id| !ids.contains(id)));
            gaps.truncate(GAPS_MAX);
        }
        self.found_at = Instant::now();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::ServerId;
    use crate::publisher::fixture;
    use tokio::time::advance;

    const EVERY: Duration = Duration::from_millis(20);
    const OFTEN: Duration = Duration::from_millis(5);

    fn limits(poll_interval: Duration) -> Limits {
        Limits { poll_interval, look_every: OFTEN, ..fixture::limits() }
    }

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

    #[tokio::test(start_paused = true)]
    async fn it_looks_for_what_is_unknown_before_an_empty_scan() {
        let (mut lookout, mut marks) = (Lookout::new(), marks(&[5, 8]));
        assert_eq!(lookout.next(&limits(EVERY)), None, "before the first scan");
        lookout.scans(&mut marks);
        assert_eq!(lookout.next(&limits(EVERY)), None, "during a scan");
        lookout.found_nothing(3);
        let (look, every) = lookout.next(&limits(EVERY)).unwrap();
        assert_eq!((&look, every), (&Look { above: Some(8), gaps: vec![6, 7] }, OFTEN));
        assert!(!lookout.looked(&look, 3, &[]));
        assert!(lookout.looked(&look, 3, &[10, 9, 7]));
        assert_eq!(lookout.next(&limits(EVERY)).unwrap().0, Look { above: Some(10), gaps: vec![6] });
        assert!(lookout.looked(&look, 3, &[13]));
        assert_eq!(lookout.next(&limits(EVERY)).unwrap().0, Look { above: Some(13), gaps: vec![6, 11, 12] });
        advance(SCAN_EVERY).await;
        assert_eq!(lookout.next(&limits(EVERY)), None, "a scan finds what no look can find");
        lookout.scans(&mut marks);
        lookout.found_nothing(3);
        assert_eq!(lookout.next(&limits(EVERY)).unwrap().0.above, Some(13), "the marks do not know it");
        assert!(!lookout.looked(&look, 4, &[14]), "a hold has ended");
        assert_eq!(lookout.next(&limits(EVERY)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn it_asks_for_the_highest_id_if_it_knows_none() {
        let mut lookout = Lookout::new();
        lookout.scans(&mut Marks::new());
        lookout.found_nothing(0);
        let (look, _) = lookout.next(&limits(EVERY)).unwrap();
        assert_eq!(look, Look { above: None, gaps: Vec::new() });
        assert!(!lookout.looked(&look, 0, &[20, 19]), "they may have been sent long ago");
        assert_eq!(lookout.next(&limits(EVERY)).unwrap().0.above, Some(20));
    }

    #[tokio::test(start_paused = true)]
    async fn it_looks_rarely_when_nothing_has_arrived_for_long() {
        let mut lookout = Lookout::new();
        let every = |lookout: &mut Lookout, poll_interval| {
            lookout.scans(&mut marks(&[5]));
            lookout.found_nothing(0);
            lookout.next(&limits(poll_interval)).unwrap().1
        };
        assert_eq!(every(&mut lookout, EVERY), OFTEN);
        assert_eq!(every(&mut lookout, OFTEN / 5), OFTEN / 5);
        advance(ARRIVING_FOR).await;
        assert_eq!(every(&mut lookout, EVERY), EVERY);
        let hour = Duration::from_secs(3_600);
        assert_eq!(every(&mut lookout, hour), hour, "scans are as rare");
    }

    #[tokio::test(start_paused = true)]
    async fn it_only_scans_while_another_relay_publishes_or_rows_may_wait() {
        let (mut lookout, mut marks) = (Lookout::new(), marks(&[5]));
        let mut scanned = |lookout: &mut Lookout| {
            lookout.scans(&mut marks);
            lookout.found_nothing(0);
            lookout.next(&limits(EVERY)).is_some()
        };
        assert!(scanned(&mut lookout));
        lookout.doubts();
        assert_eq!(lookout.next(&limits(EVERY)), None);
        assert!(scanned(&mut lookout));
        lookout.yields();
        assert!(!scanned(&mut lookout));
        advance(YIELDS_FOR).await;
        assert!(scanned(&mut lookout));
    }
}
