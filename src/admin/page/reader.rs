//! What the page knows about the database. The database is queried only while there are viewers, on a connection of its own,
//! and at most every few seconds, however many viewers there are. A page never waits long for the result.

use super::Page;
use crate::config::Config;
use crate::status::report::Report;
use crate::status::{Monitor, MonitorError};
use postgres::diagnose::status::LaneStatus;
use settings::text::in_line;
use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

/// Younger results are shown again. Slightly shorter than the interval at which the page refreshes itself.
pub(super) const FRESH: Duration = Duration::from_secs(4);
/// How old a result may be without a notice.
pub(super) const CURRENT: Duration = Duration::from_secs(15);
/// How long a page waits for a result if there is no current one.
pub(super) const PATIENCE_FIRST: Duration = Duration::from_secs(1);
/// How long the next ones wait, before they show the previous result.
pub(super) const PATIENCE: Duration = Duration::from_millis(30);
/// After this, the connection is closed and the result is discarded.
pub(super) const UNWATCHED: Duration = Duration::from_secs(30);
/// How long the server may work on one statement.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a reading may take. A new connection may run a `password_command`. No page waits that long.
const READ_WITHIN: Duration = Duration::from_secs(15);
const FAULT: usize = 600;

/// The state of the outbox at one moment.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) report: Report,
    pub(super) lanes: Vec<LaneStatus>,
    pub(super) read_at: SystemTime,
}

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
#[derive(Default)]
pub(super) struct Facts {
    wanted: Notify,
    known: watch::Sender<Known>,
}

impl Facts {
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

    /// Reads whenever a viewer asks for it, forever. Does nothing while there are no viewers. `read` gets the connection of the
    /// last reading, if it is still open, takes a bounded time, and fails with an error that the page shows.
    pub(super) async fn keep<C>(
        &self,
        mut read: impl AsyncFnMut(Option<C>) -> Result<(C, Snapshot), String>,
    ) -> Infallible {
        let mut connection = None;
        loop {
            if timeout(UNWATCHED, self.wanted.notified()).await.is_err() {
                connection = None;
                self.known.send_replace(Known::default());
                self.wanted.notified().await;
            }
            if self.known.borrow().is_fresh() {
                continue; // several viewers asked for the same reading
            }
            let result = read(connection.take()).await;
            self.known.send_modify(|known| {
                known.read = Some(Instant::now());
                match result {
                    Ok((open, snapshot)) => {
                        connection = Some(open);
                        (known.last, known.fault) = (Some(Arc::new(snapshot)), None);
                    }
                    Err(fault) => known.fault = Some(fault),
                }
            });
        }
    }
}

impl Page {
    /// Reads the report of `outbox-relay status`. Opens a new connection if the settings have changed. After a failure, the
    /// connection is dropped, because another server may answer the next time.
    pub(super) async fn read(
        &self,
        config: &mut watch::Receiver<Config>,
        open: Option<Monitor>,
    ) -> Result<(Monitor, Snapshot), String> {
        let open = open.filter(|_| matches!(config.has_changed(), Ok(false)));
        // In a separate allocation, because the process needs it only while there are viewers.
        let read = Box::pin(async {
            let mut monitor = match open {
                Some(monitor) => monitor,
                None => self.connect(config.borrow_and_update().clone())?,
            };
            let report = monitor.report(None, ready(Some(self.here()))).await?;
            let lanes = monitor.lanes().await?;
            Ok((monitor, Snapshot { report, lanes, read_at: SystemTime::now() }))
        });
        let describe = |error: MonitorError| in_line(&error.to_string(), FAULT);
        match timeout(READ_WITHIN, read).await {
            Ok(read) => read.map_err(describe),
            Err(_) => Err(format!("no response within {READ_WITHIN:?}")),
        }
    }

    fn connect(&self, config: Config) -> Result<Monitor, MonitorError> {
        Monitor::new(config, self.config_file.as_deref(), "page", Some(STATEMENT_TIMEOUT))
    }
}
