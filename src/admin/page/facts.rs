//! What the page shows of the database. The database is queried only while there are viewers, and at most every few seconds,
//! however many there are. A page never waits long for the result.

use crate::status::report::Report;
use postgres::diagnose::status::LaneStatus;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

/// Younger results are shown again. Slightly shorter than the interval at which the page refreshes itself.
pub(super) const FRESH: Duration = Duration::from_secs(4);
/// How old a result may be without a notice.
pub(super) const CURRENT: Duration = Duration::from_secs(15);
/// How long a page waits for a result if there is no current one.
const PATIENCE_FIRST: Duration = Duration::from_secs(1);
/// How long the next ones wait, before they show the previous result.
const PATIENCE: Duration = Duration::from_millis(30);
/// After this, the connection is closed and the result is discarded.
const UNWATCHED: Duration = Duration::from_secs(30);

/// The state of the outbox at one moment.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) report: Report,
    pub(super) lanes: Vec<LaneStatus>,
    pub(super) read_at: SystemTime,
}

/// Reads the state of the outbox.
#[allow(async_fn_in_trait, reason = "the reader runs on the relay's thread: no future has to be Send")]
pub(super) trait Source {
    /// Reads once, in bounded time. The error is shown on the page.
    async fn read(&mut self) -> Result<Snapshot, String>;
    /// Closes the connection.
    fn close(&mut self);
}

/// What is known about the outbox.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// The latest successful reading.
    pub(super) last: Option<Arc<Snapshot>>,
    /// Why the latest reading failed.
    pub(super) fault: Option<String>,
    /// The end of the latest reading.
    pub(super) read: Option<Instant>,
}

impl Known {
    fn is_fresh(&self) -> bool {
        self.read.is_some_and(|read| read.elapsed() < FRESH)
    }
}

/// Shared by the viewers and the reader.
pub(super) struct Facts {
    wanted: Notify,
    known: watch::Sender<Known>,
}

impl Facts {
    pub(super) fn new() -> Facts {
        Facts { wanted: Notify::new(), known: watch::Sender::default() }
    }

    /// What is known, for a viewer. Asks for a new reading if the last one is old.
    pub(super) async fn current(&self) -> Known {
        let mut known = self.known.subscribe();
        let now = known.borrow_and_update().clone();
        if now.is_fresh() {
            return now;
        }
        self.wanted.notify_one();
        let is_current = now.read.is_some_and(|read| read.elapsed() < CURRENT);
        let patience = if is_current { PATIENCE } else { PATIENCE_FIRST };
        // Without an answer in time, the previous result is shown.
        _ = timeout(patience, known.changed()).await;
        known.borrow().clone()
    }

    /// Reads whenever a viewer asks for it, forever. Does nothing while there are no viewers.
    pub(super) async fn keep(&self, source: &mut impl Source) -> Infallible {
        loop {
            if timeout(UNWATCHED, self.wanted.notified()).await.is_err() {
                source.close();
                self.known.send_replace(Known::default());
                self.wanted.notified().await;
            }
            if self.known.borrow().is_fresh() {
                continue; // several viewers asked for the same reading
            }
            let read = source.read().await;
            self.known.send_modify(|known| {
                known.read = Some(Instant::now());
                match read {
                    Ok(snapshot) => (known.last, known.fault) = (Some(Arc::new(snapshot)), None),
                    Err(fault) => known.fault = Some(fault),
                }
            });
        }
    }
}

#[cfg(test)]
mod tests;
