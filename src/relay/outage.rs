//! A fault that lasts is one line when it begins and one when it ends.

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::Instant;

/// Who has not been failed for so long, and has nothing to do, is not failed any more: longer than any backoff.
const QUIET: Duration = Duration::from_secs(5);

/// Whether one thing, such as Postgres, works for everybody who needs it.
pub struct Outage {
    what: &'static str,
    now: RefCell<Option<Now>>,
}

struct Now {
    since: Instant,
    latest: Instant,
    times: u64,
    /// It is over when it works for all of these again.
    parties: HashSet<usize>,
}

impl Outage {
    /// It works.
    pub fn new(what: &'static str) -> Outage {
        Outage { what, now: RefCell::new(None) }
    }

    /// It failed this party. Said once, with what to do about it.
    pub fn failed(&self, party: usize, error: &dyn std::fmt::Display, advice: &str) {
        let mut now = self.now.borrow_mut();
        if now.is_some() {
            tracing::debug!("{} still fails: {error}", self.what);
        } else {
            tracing::warn!("{} fails, nothing is lost: {error}. {advice}", self.what);
        }
        let at = Instant::now();
        let now = now.get_or_insert_with(|| Now { since: at, latest: at, times: 0, parties: HashSet::new() });
        now.latest = at;
        now.times += 1;
        now.parties.insert(party);
    }

    /// It worked for this party. Said once, when it works for all, with how long it had not.
    pub fn worked(&self, party: usize) {
        self.forget(|failed, _| failed == party);
    }

    /// Nobody but this party has anything to do with it now: whom it failed last may not try again for hours.
    pub fn needed_only_by(&self, party: usize) {
        self.forget(|failed, quiet| failed != party && quiet > QUIET);
    }

    fn forget(&self, forgets: impl Fn(usize, Duration) -> bool) {
        let mut current = self.now.borrow_mut();
        let Some(now) = current.as_mut() else { return };
        let quiet = now.latest.elapsed();
        now.parties.retain(|party| !forgets(*party, quiet));
        if now.parties.is_empty() {
            let seconds = now.since.elapsed().as_secs_f64();
            tracing::info!(seconds, failed_attempts = now.times, "{} works again", self.what);
            *current = None;
        }
    }

    /// For how long it has failed.
    pub fn lasts(&self) -> Option<Duration> {
        self.now.borrow().as_ref().map(|now| now.since.elapsed())
    }
}
