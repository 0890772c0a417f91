//! A fault that lasts is one line when it begins and one when it ends.

use crate::relay::health::episodes::Episode;
use std::cell::RefCell;
use std::collections::HashSet;
use std::time::Duration;

/// Who has not been failed for so long, and has nothing to do, is not failed any more: longer than any backoff.
const QUIET: Duration = Duration::from_secs(5);

/// What to do about a Postgres that fails.
pub const POSTGRES_ADVICE: &str =
    "Publishing resumes by itself. For details, run `outbox-relay check-config --connect`";

/// Whether one thing, such as Postgres, works for everybody who needs it.
pub struct Outage {
    what: &'static str,
    /// Nothing is said of one that is over before.
    patience: Duration,
    now: RefCell<Option<Now>>,
}

struct Now {
    episode: Episode,
    said: bool,
    /// It is over when it works for all of these again.
    parties: HashSet<usize>,
}

impl Outage {
    /// It works.
    pub fn new(what: &'static str) -> Outage {
        Outage::lasting(what, Duration::ZERO)
    }

    /// It works, and may fail for a moment without a word.
    pub fn lasting(what: &'static str, patience: Duration) -> Outage {
        Outage { what, patience, now: RefCell::new(None) }
    }

    /// It failed this party. Said once, with what to do about it.
    pub fn failed(&self, party: usize, error: &dyn std::fmt::Display, advice: &str) {
        let mut now = self.now.borrow_mut();
        // A short one that was not reported, and has not occurred again for long, is over.
        if now.as_ref().is_some_and(|now| !now.said && now.episode.quiet() > QUIET) {
            *now = None;
        }
        let now = match now.as_mut() {
            Some(now) => {
                now.episode.again();
                now
            }
            None => now.insert(Now { episode: Episode::begin(), said: false, parties: HashSet::new() }),
        };
        now.parties.insert(party);
        if now.said || now.episode.age() < self.patience {
            tracing::debug!("{} still unavailable: {error}", self.what);
        } else {
            now.said = true;
            tracing::warn!("{} unavailable, retrying; no events are lost: {error}. {advice}", self.what);
        }
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
        let quiet = now.episode.quiet();
        now.parties.retain(|party| !forgets(*party, quiet));
        if now.parties.is_empty() {
            let seconds = now.episode.age().as_secs_f64();
            if now.said {
                tracing::info!(seconds, failed_attempts = now.episode.times, "{} available again", self.what);
            }
            *current = None;
        }
    }

    /// For how long it has failed.
    pub fn lasts(&self) -> Option<Duration> {
        self.now.borrow().as_ref().map(|now| now.episode.age())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn it_is_over_when_it_works_for_all_whom_it_failed() {
        let outage = Outage::new("a test");
        outage.failed(0, &"gone", "");
        outage.failed(1, &"gone", "");
        outage.worked(0);
        outage.worked(2);
        assert!(outage.lasts().is_some());
        outage.worked(1);
        assert!(outage.lasts().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn whom_it_failed_last_and_who_has_nothing_to_do_does_not_keep_it_open() {
        let outage = Outage::new("a test");
        outage.failed(0, &"gone", "");
        outage.failed(1, &"gone", "");
        outage.needed_only_by(0);
        outage.worked(0);
        assert!(outage.lasts().is_some(), "it may have been failed in the middle of its work");
        outage.failed(0, &"gone", "");
        advance(QUIET * 2).await;
        outage.needed_only_by(0);
        assert!(outage.lasts().is_some(), "the one that needs it has not said that it works");
        outage.worked(0);
        assert!(outage.lasts().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_over_soon_is_not_spoken_of_and_does_not_add_up() {
        let outage = Outage::lasting("a test", QUIET);
        let said = || outage.now.borrow().as_ref().is_some_and(|now| now.said);
        outage.failed(0, &"locked", "");
        advance(QUIET * 2).await;
        outage.failed(0, &"locked", "");
        assert!(!said(), "that was another one");
        for _ in 0..5 {
            assert!(!said());
            advance(QUIET / 5).await;
            outage.failed(0, &"locked", "");
        }
        assert!(said());
        outage.worked(0);
        assert!(!said() && outage.lasts().is_none());
    }
}
