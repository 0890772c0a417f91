//! Reads the facts with the report of `outbox-relay status`, on a connection of its own.

use super::Page;
use super::facts::{Snapshot, Source};
use crate::config::Config;
use crate::status::monitor::{Limits, Monitor, MonitorError};
use settings::text::in_line;
use std::future::ready;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tokio::time::timeout;

/// How long the server may work on one statement.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a reading may take. A new connection may run a `password_command`. No page waits that long.
const READ_WITHIN: Duration = Duration::from_secs(15);
const FAULT: usize = 600;

/// The connection, which exists only while there are viewers.
pub(super) struct Reader<'a> {
    page: &'a Page,
    config: watch::Receiver<Config>,
    monitor: Option<Monitor>,
}

impl Reader<'_> {
    pub(super) fn new(page: &Page) -> Reader<'_> {
        Reader { page, config: page.config.clone(), monitor: None }
    }

    /// The open connection, unless the settings have changed.
    fn monitor(&mut self) -> Result<Monitor, MonitorError> {
        let is_current = matches!(self.config.has_changed(), Ok(false));
        if let Some(monitor) = self.monitor.take().filter(|_| is_current) {
            return Ok(monitor);
        }
        let config = self.config.borrow_and_update().clone();
        let limits = Limits { statement_timeout: Some(STATEMENT_TIMEOUT) };
        Monitor::new(config, self.page.config_file.as_deref(), "page", limits)
    }
}

impl Source for Reader<'_> {
    async fn read(&mut self) -> Result<Snapshot, String> {
        let mut monitor = self.monitor().map_err(|error| describe(&error))?;
        let here = ready(Some(self.page.here()));
        // In a separate allocation, because the process needs it only while there are viewers.
        let read = Box::pin(async {
            let report = monitor.report(None, here).await?;
            let lanes = monitor.lanes().await?;
            Ok(Snapshot { report, lanes, read_at: SystemTime::now() })
        });
        match timeout(READ_WITHIN, read).await {
            Ok(Ok(snapshot)) => {
                self.monitor = Some(monitor);
                Ok(snapshot)
            }
            // Another server may answer the next time, so the connection is dropped.
            Ok(Err(error)) => Err(describe(&error)),
            Err(_) => Err(format!("no response within {READ_WITHIN:?}")),
        }
    }

    fn close(&mut self) {
        self.monitor = None;
    }
}

fn describe(error: &MonitorError) -> String {
    in_line(&error.to_string(), FAULT)
}
