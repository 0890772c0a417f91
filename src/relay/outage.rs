//! A fault that lasts is one line when it begins and one when it ends.

use std::cell::RefCell;
use tokio::time::Instant;

/// Whether one thing, such as Postgres, works.
pub struct Outage {
    what: &'static str,
    now: RefCell<Option<(Instant, u64)>>,
}

impl Outage {
    /// It works.
    pub fn new(what: &'static str) -> Outage {
        Outage { what, now: RefCell::new(None) }
    }

    /// It failed. Said once, with what to do about it.
    pub fn failed(&self, error: &dyn std::fmt::Display, advice: &str) {
        let mut now = self.now.borrow_mut();
        match now.as_mut() {
            Some((_, times)) => {
                *times += 1;
                tracing::debug!("{} still fails: {error}", self.what);
            }
            None => {
                *now = Some((Instant::now(), 1));
                tracing::warn!("{} fails, nothing is lost: {error}. {advice}", self.what);
            }
        }
    }

    /// It worked. Said once, with how long it had not.
    pub fn worked(&self) {
        if let Some((since, times)) = self.now.borrow_mut().take() {
            let seconds = since.elapsed().as_secs_f64();
            tracing::info!(seconds, failed_attempts = times, "{} works again", self.what);
        }
    }
}
