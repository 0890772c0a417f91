//! A relay under measurement. It is a separate process, so that its CPU and memory are distinguished from those of the
//! measurement.

use crate::error::BenchError;
use crate::place::{Place, Route};
use crate::processes::usage::Party;
use crate::settings::Settings;
use crate::subject::Subject;
use outbox_relay::cli::frame::CONFIG_VARIABLE;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The time from its start until it is ready.
const START_WITHIN: Duration = Duration::from_secs(60);
const LOG_LINES_MAX: usize = 200;
const LOG_LINES_SHOWN: usize = 20;
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A running relay. Dropping it kills the process.
pub struct Relay {
    process: Child,
    log: Arc<Log>,
}

/// Its log.
#[derive(Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    grown: Notify,
}

impl Relay {
    /// Starts `outbox-relay run` on the scratch outbox, publishing to these topics, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// If it cannot be started, or ends. The error contains its log.
    pub async fn start(place: &Place, route: &Route) -> Result<Relay, BenchError> {
        Relay::start_with(place, route, |settings| settings).await
    }

    /// The same with other settings. `change` gets those of the place.
    ///
    /// # Errors
    ///
    /// As for [`Relay::start`].
    pub async fn start_with(
        place: &Place,
        route: &Route,
        change: impl FnOnce(Settings) -> Settings,
    ) -> Result<Relay, BenchError> {
        let settings = change(place.settings().clone().with("outbox", "topic", route.template()));
        // Validated here as well, where errors can be printed properly.
        settings.load()?;
        let mut relay = Relay::spawn(&settings)?;
        relay.wait_for(" relay started ").await?;
        Ok(relay)
    }

    fn spawn(settings: &Settings) -> Result<Relay, BenchError> {
        let mut process = Command::new(settings.program())
            .arg("run")
            .arg("--while-stdin-is-open")
            .env(CONFIG_VARIABLE, "") // without a file, the relay must not look for one
            .args(settings.arguments())
            .envs(settings.overrides().iter().map(|(name, value)| (name, value)))
            .env_remove("NOTIFY_SOCKET")
            .env_remove("JOURNAL_STREAM")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| BenchError::System { doing: "starting a relay", source })?;
        let log = Arc::new(Log::default());
        if let Some(stderr) = process.stderr.take() {
            let log = Arc::clone(&log);
            std::thread::spawn(move || log.follow(stderr));
        }
        Ok(Relay { process, log })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends SIGTERM, and waits until it has settled its rows in flight.
    ///
    /// # Errors
    ///
    /// If it did not end successfully. The error contains its log.
    pub async fn stop(mut self) -> Result<(), BenchError> {
        drop(self.process.stdin.take());
        loop {
            match self.process.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(self.failed(&format!("exited with {status}"))),
                Ok(None) => tokio::time::sleep(POLL_INTERVAL).await,
                Err(source) => return Err(BenchError::System { doing: "waiting for a relay", source }),
            }
        }
    }

    /// Its metrics.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub async fn metrics(&self) -> Result<crate::processes::metrics::Metrics, BenchError> {
        let address = self.log.find("serving metrics and health checks at http://");
        let address = address.as_deref().and_then(|rest| rest.split('/').next()).unwrap_or_default();
        crate::processes::metrics::fetch(address).await
    }

    async fn wait_for(&mut self, text: &str) -> Result<(), BenchError> {
        let begun = Instant::now();
        while self.log.find(text).is_none() {
            self.check()?;
            if begun.elapsed() > START_WITHIN {
                return Err(self.failed(&format!("was not ready within {START_WITHIN:?}")));
            }
            // If it ends without a log line, the next check notices.
            let _ = tokio::time::timeout(10 * POLL_INTERVAL, self.log.grown.notified()).await;
        }
        Ok(())
    }

    fn failed(&self, how: &str) -> BenchError {
        BenchError::Subject(format!("the relay {how}. End of its log:\n{}", self.log.tail()))
    }
}

impl Subject for Relay {
    fn party(&self) -> Party {
        Party::started("relay", self.pid())
    }

    fn check(&mut self) -> Result<(), BenchError> {
        match self.process.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.failed(&format!("exited: {status}"))),
            Err(source) => Err(BenchError::System { doing: "checking a relay", source }),
        }
    }

    async fn has_settled(&mut self, rows: u64) -> Result<bool, BenchError> {
        Ok(self.metrics().await?.value("outbox_relay_published_total") as u64 >= rows)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // An error means that it has already ended.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

impl Log {
    fn follow(&self, stderr: ChildStderr) {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() == LOG_LINES_MAX {
                // Keeps the first lines, which contain the address of its metrics.
                lines.remove(LOG_LINES_MAX / 2);
            }
            lines.push(line);
            drop(lines);
            self.grown.notify_one();
        }
    }

    /// The text after this one, in the first line that contains it.
    fn find(&self, text: &str) -> Option<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().find_map(|line| Some(line.split_once(text)?.1.to_owned()))
    }

    fn tail(&self) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }
}
