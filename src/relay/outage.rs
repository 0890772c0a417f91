//! A fault that lasts is one line when it begins and one when it ends.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// A party that has not failed again for so long has nothing to do, and may have nothing for hours: others did its work.
/// Longer than any of them waits for a connection.
const IDLE: Duration = Duration::from_secs(60);

/// Whether one thing, such as Postgres, works for everybody who needs it.
pub struct Outage {
    what: &'static str,
    now: RefCell<Option<Now>>,
}

struct Now {
    since: Instant,
    times: u64,
    /// When it last failed these: it is over when it works for all of them again.
    parties: HashMap<usize, Instant>,
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
        let now = now.get_or_insert_with(|| Now { since: Instant::now(), times: 0, parties: HashMap::new() });
        now.times += 1;
        now.parties.insert(party, Instant::now());
    }

    /// It worked for this party. Said once, when it works for all, with how long it had not.
    pub fn worked(&self, party: usize) {
        let mut current = self.now.borrow_mut();
        let Some(now) = current.as_mut() else { return };
        now.parties.remove(&party);
        now.parties.retain(|_, failed_at| failed_at.elapsed() < IDLE);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_outage_ends_when_it_works_for_all_it_failed_or_they_have_been_idle_for_long() {
        let outage = Outage::new("testing");
        outage.failed(1, &"broken", "");
        outage.failed(2, &"broken", "");
        outage.worked(1);
        assert!(outage.lasts().is_some(), "not for the second");
        outage.worked(2);
        assert!(outage.lasts().is_none());

        outage.failed(1, &"broken", "");
        outage.failed(2, &"broken", "");
        tokio::time::sleep(IDLE / 2).await;
        outage.failed(2, &"broken", "");
        tokio::time::sleep(IDLE / 2).await;
        outage.worked(0);
        assert!(outage.lasts().is_some(), "the second has failed again meanwhile");
        tokio::time::sleep(IDLE / 2).await;
        outage.worked(0);
        assert!(outage.lasts().is_none());
    }
}
