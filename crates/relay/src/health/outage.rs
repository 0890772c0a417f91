//! Logs a lasting fault once when it begins and once when it ends.

use crate::health::episodes::Episode;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::Instant;

/// If no party has failed for this long, idle parties no longer keep the outage open. Longer than any backoff.
pub(crate) const QUIET: Duration = Duration::from_secs(5);

pub const POSTGRES_ADVICE: &str =
    "Publishing resumes by itself. If this persists, run `outbox-relay check-config --connect`";

/// The prober's number in outages.
pub(crate) const PROBER: usize = usize::MAX;
pub(crate) const NOT_RECORDED: &str = "sent rows cannot be marked as sent";
pub(crate) const LOCKS_ADVICE: &str = "Another session has locked the outbox or some of its rows. Find the session in \
     pg_locks and end it (docs/runbook.md, OutboxRelayUnsettled). The relay then marks the rows without sending \
     them again";

/// Whether one thing, such as Postgres, works for every party that needs it. A party is the scout or a worker.
pub struct Outage {
    what: &'static str,
    /// Its state during the outage, and afterwards.
    states: (&'static str, &'static str),
    /// The event code of its log lines, which docs/logs.md explains.
    code: &'static str,
    /// Shorter outages are not reported.
    patience: Duration,
    current: RefCell<Option<Current>>,
    /// When the last outage ended.
    ended_at: Cell<Option<Instant>>,
}

struct Current {
    episode: Episode,
    reported: bool,
    /// The latest one.
    error: String,
    /// The outage is over when it works for all of these again.
    parties: HashSet<usize>,
}

impl Outage {
    pub fn new(what: &'static str, code: &'static str) -> Outage {
        Outage::lasting(what, code, Duration::ZERO)
    }

    /// Outages shorter than `patience` are not reported.
    pub(crate) fn lasting(what: &'static str, code: &'static str, patience: Duration) -> Outage {
        let states = ("unavailable", "available again");
        Outage { what, states, code, patience, current: RefCell::new(None), ended_at: Cell::new(None) }
    }

    /// Describes the outage in these words instead of "unavailable" and "available again".
    pub fn described(self, during: &'static str, afterwards: &'static str) -> Outage {
        Outage { states: (during, afterwards), ..self }
    }

    /// Whether a failure of what began at this time belongs to an outage that has ended meanwhile. For example, a worker that
    /// waited for Kafka during a short outage of Postgres finds out only afterwards that its connection is closed.
    pub(crate) fn has_ended_since(&self, begun: Instant) -> bool {
        self.current.borrow().is_none() && self.ended_at.get().is_some_and(|ended| ended > begun)
    }

    /// Records a failure for this party. An outage is logged once.
    pub fn failed(&self, party: usize, error: &dyn std::fmt::Display, advice: &str) {
        let mut current = self.current.borrow_mut();
        // An unreported outage without a recent failure is over.
        if current.as_ref().is_some_and(|outage| !outage.reported && outage.episode.quiet() > QUIET) {
            *current = None;
        }
        let outage = match current.as_mut() {
            Some(outage) => {
                outage.episode.again();
                outage
            }
            None => current.insert(Current {
                episode: Episode::begin(),
                reported: false,
                error: String::new(),
                parties: HashSet::new(),
            }),
        };
        outage.error = error.to_string();
        outage.parties.insert(party);
        if outage.reported || outage.episode.age() < self.patience {
            tracing::debug!("{} still {}: {error}", self.what, self.states.0);
        } else {
            outage.reported = true;
            tracing::warn!(
                code = self.code,
                "{} {}, retrying: {error}. No events are lost. {advice}",
                self.what,
                self.states.0
            );
        }
    }

    /// Records a success for this party. The end of an outage is logged once, when it works for all parties.
    pub fn worked(&self, party: usize) {
        self.forget(|failed, _| failed == party);
    }

    /// Ends the outage for the other parties if nothing has failed for [`QUIET`]. They are idle and may not try again for hours.
    pub fn needed_only_by(&self, parties: &[usize]) {
        self.forget(|failed, quiet| !parties.contains(&failed) && quiet > QUIET);
    }

    fn forget(&self, forgets: impl Fn(usize, Duration) -> bool) {
        let mut current = self.current.borrow_mut();
        let Some(outage) = current.as_mut() else { return };
        let quiet = outage.episode.quiet();
        outage.parties.retain(|party| !forgets(*party, quiet));
        if outage.parties.is_empty() {
            let Episode { times: failed_attempts, .. } = outage.episode;
            let seconds = rounded(outage.episode.age());
            if outage.reported {
                tracing::info!(code = self.code, seconds, failed_attempts, "{} {}", self.what, self.states.1);
            }
            self.ended_at.set(Some(Instant::now()));
            *current = None;
        }
    }

    pub fn lasts(&self) -> Option<Duration> {
        self.current.borrow().as_ref().map(|outage| outage.episode.age())
    }

    /// The same, if something has failed within [`QUIET`].
    pub(crate) fn still_fails(&self) -> Option<(Duration, String)> {
        let current = self.current.borrow();
        let outage = current.as_ref().filter(|outage| outage.episode.quiet() < QUIET)?;
        Some((outage.episode.age(), outage.error.clone()))
    }
}

/// Seconds for the log, with three decimals.
pub fn rounded(time: Duration) -> f64 {
    time.as_millis() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn an_outage_ends_when_it_is_over_for_every_party() {
        let outage = Outage::new("a test", "test");
        outage.failed(0, &"gone", "");
        outage.failed(1, &"gone", "");
        outage.worked(0);
        outage.worked(2);
        assert!(outage.lasts().is_some());
        outage.worked(1);
        assert!(outage.lasts().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_party_does_not_prolong_an_outage() {
        let outage = Outage::new("a test", "test");
        outage.failed(0, &"gone", "");
        outage.failed(1, &"gone", "");
        outage.needed_only_by(&[0]);
        outage.worked(0);
        assert!(outage.lasts().is_some(), "party 1 may still be working");
        outage.failed(0, &"gone", "");
        advance(QUIET * 2).await;
        outage.needed_only_by(&[0]);
        assert!(outage.lasts().is_some(), "party 0 has not reported a success");
        outage.worked(0);
        assert!(outage.lasts().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn short_outages_are_not_reported_and_do_not_add_up() {
        let outage = Outage::lasting("a test", "test", QUIET);
        let reported = || outage.current.borrow().as_ref().is_some_and(|current| current.reported);
        outage.failed(0, &"locked", "");
        advance(QUIET * 2).await;
        outage.failed(0, &"locked", "");
        assert!(!reported(), "the first outage is over");
        for _ in 0..5 {
            assert!(!reported());
            advance(QUIET / 5).await;
            outage.failed(0, &"locked", "");
        }
        assert!(reported());
        outage.worked(0);
        assert!(!reported() && outage.lasts().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_failure_belongs_to_the_outage_that_has_ended() {
        let outage = Outage::new("a test", "test");
        let before = Instant::now();
        assert!(!outage.has_ended_since(before), "there was no outage");
        advance(Duration::from_secs(1)).await;
        outage.failed(0, &"gone", "");
        assert!(!outage.has_ended_since(before), "it lasts");
        outage.worked(0);
        assert!(outage.has_ended_since(before));
        assert!(!outage.has_ended_since(Instant::now()), "what begins now can fail by itself");
        outage.failed(0, &"gone again", "");
        assert!(!outage.has_ended_since(before), "the next one lasts");
    }
}
