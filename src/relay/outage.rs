//! A fault that lasts is one line when it begins and one when it ends.

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::Instant;

/// Whether one thing, such as Postgres, works for everybody who needs it.
pub struct Outage {
    what: &'static str,
    now: RefCell<Option<Now>>,
}

struct Now {
    since: Instant,
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
        let now = now.get_or_insert_with(|| Now { since: Instant::now(), times: 0, parties: HashSet::new() });
        now.times += 1;
        now.parties.insert(party);
    }

    /// It worked for this party. Said once, when it works for all, with how long it had not.
    pub fn worked(&self, party: usize) {
        let mut current = self.now.borrow_mut();
        let Some(now) = current.as_mut() else { return };
        now.parties.remove(&party);
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
