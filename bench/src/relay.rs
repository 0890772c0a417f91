//! The measured program: what a measurement needs to know about it, and a relay. It is a separate process, so that its CPU
//! and memory are distinguished from those of the measurement.

use crate::BenchError;
use crate::load::Shape;
use crate::place::{Place, Route};
use crate::settings::Settings;
use crate::usage::Party;
use outbox_relay::cli::frame::CONFIG_VARIABLE;
use outbox_relay::kafka::record::EVENT_ID;
use serde::Serialize;
use std::io::{self, BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;

/// A program that relays rows: our relay, or one that it is compared with.
#[allow(async_fn_in_trait, reason = "measurements run on one thread, so futures need not be Send")]
pub trait Subject {
    /// The header in which it publishes the event's id.
    const EVENT_ID: &'static str;

    fn party(&self) -> Party;

    /// Checks whether it still works. If it does not, the error contains its output.
    fn check(&mut self) -> Result<(), BenchError>;

    /// Whether it has settled this number of rows, all that it has published since its start. The check must not cause
    /// work for its database.
    async fn has_settled(&mut self, rows: u64) -> Result<bool, BenchError>;
}

/// The time from its start until it is ready.
const START_WITHIN: Duration = Duration::from_secs(60);
const LOG_LINES_MAX: usize = 200;
const LOG_LINES_SHOWN: usize = 20;
const POLL_INTERVAL: Duration = Duration::from_millis(5);
const METRICS_WITHIN: Duration = Duration::from_secs(5);

/// A running relay. Dropping it kills the process.
pub struct Relay {
    process: Child,
    log: Arc<Log>,
}

#[derive(Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    grown: Notify,
}

impl Relay {
    /// Starts `outbox-relay run` on the scratch outbox, publishing to these topics, and waits until it is ready.
    pub async fn start(route: &Route<'_>) -> Result<Relay, BenchError> {
        Relay::start_with(route, |settings| settings).await
    }

    /// The same with other settings. `change` gets those of the place. Errors contain the relay's log.
    pub async fn start_with(
        route: &Route<'_>,
        change: impl FnOnce(Settings) -> Settings,
    ) -> Result<Relay, BenchError> {
        let settings =
            change(route.place.settings.clone().with("outbox", "topic", route.template.to_string()));
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

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends SIGTERM, and waits until it has settled its rows in flight.
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

    pub async fn metrics(&self) -> Result<Metrics, BenchError> {
        let address = self.log.find("serving metrics and health checks at http://");
        let address = address.as_deref().and_then(|rest| rest.split('/').next()).unwrap_or_default();
        fetch(address).await
    }

    async fn wait_for(&mut self, text: &str) -> Result<(), BenchError> {
        let begun = Instant::now();
        while self.log.find(text).is_none() {
            self.check()?;
            if begun.elapsed() > START_WITHIN {
                return Err(self.failed(&format!("was not ready within {START_WITHIN:?}")));
            }
            // If it ends without a log line, the next check notices.
            let _ = timeout(10 * POLL_INTERVAL, self.log.grown.notified()).await;
        }
        Ok(())
    }

    fn failed(&self, how: &str) -> BenchError {
        BenchError::Subject(format!("the relay {how}. End of its log:\n{}", self.log.tail()))
    }
}

/// Creates topics, starts a relay that publishes to them, lets `measure` use both, and removes them.
pub async fn with_relay<T>(
    place: &Place,
    shape: &Shape,
    partitions: i32,
    measure: impl AsyncFnOnce(&Route<'_>, &mut Relay) -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let route = place.route(shape, partitions).await?;
    let mut relay = Relay::start(&route).await?;
    let measured = measure(&route, &mut relay).await?;
    relay.stop().await?;
    route.close().await?;
    Ok(measured)
}

impl Subject for Relay {
    const EVENT_ID: &'static str = EVENT_ID;

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

/// Samples by name, without those that have labels.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Vec<(String, f64)>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Batches {
    pub count: u64,
    pub rows: f64,
    /// The average time from the claim of a batch to its confirmed COMMIT, in seconds.
    pub seconds: f64,
    /// The part of it from the first row sent to the last acknowledgement, in seconds.
    pub publish_seconds: f64,
    pub connections: u64,
    /// The number of producers that were replaced after a failure and of claims that a fault of PostgreSQL ended. 0 if
    /// nothing failed.
    pub failures: u64,
}

impl Metrics {
    /// The value of a sample. 0 if it is missing.
    pub fn value(&self, name: &str) -> f64 {
        self.0.iter().find(|(known, _)| known == name).map_or(0.0, |(_, value)| *value)
    }

    pub fn batches(&self) -> Batches {
        let count = self.value("outbox_relay_batch_rows_count");
        let mean = |name: &str| {
            let (sum, count) = (self.value(&format!("{name}_sum")), self.value(&format!("{name}_count")));
            if count > 0.0 { sum / count } else { 0.0 }
        };
        Batches {
            count: count as u64,
            rows: mean("outbox_relay_batch_rows"),
            seconds: mean("outbox_relay_batch_seconds"),
            publish_seconds: mean("outbox_relay_publish_seconds"),
            connections: self.value("outbox_relay_postgres_connections_total") as u64,
            failures: (self.value("outbox_relay_sessions_failed_total")
                + self.value("outbox_relay_postgres_faults_total")) as u64,
        }
    }
}

async fn fetch(address: &str) -> Result<Metrics, BenchError> {
    let answer = request(address, "GET /metrics", "", METRICS_WITHIN).await;
    let read = answer.map(|(_, text)| parse(&text));
    read.map_err(|source| BenchError::System { doing: "reading the relay's metrics", source })
}

/// Sends a request, such as `GET /metrics`, to a server on this machine, and returns the status and the body of the
/// answer. Uses HTTP/1.0, so that the answer is not chunked and the server closes the connection after it.
pub async fn request(address: &str, line: &str, body: &str, within: Duration) -> io::Result<(u16, String)> {
    let head = format!(
        "{line} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all((head + body).as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        io::Result::Ok(answer)
    };
    let answer = timeout(within, exchange).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    let (status, body) = parse_answer(&answer).ok_or_else(|| io::Error::other("not an HTTP response"))?;
    Ok((status, body.to_owned()))
}

fn parse_answer(answer: &str) -> Option<(u16, &str)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body))
}

fn parse(text: &str) -> Metrics {
    let samples = text.lines().filter(|line| !line.starts_with('#') && !line.contains('{'));
    let sample = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    Metrics(samples.filter_map(sample).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use outbox_relay::admin::metrics::Metrics as Shown;
    use outbox_relay::relay::health::stats::Stats;

    #[test]
    fn metric_names_are_those_of_the_relay() {
        let stats = Arc::new(Stats::new());
        stats.batch_rows.observe(10.0);
        stats.batch_rows.observe(20.0);
        stats.batch_seconds.observe(0.5);
        stats.publish_seconds.observe(0.25);
        stats.postgres_connections.inc();
        stats.sessions_failed.inc();
        stats.postgres_faults.inc();
        let batches = parse(&Shown::new(&stats).text().unwrap()).batches();
        let wanted = Batches {
            count: 2,
            rows: 15.0,
            seconds: 0.5,
            publish_seconds: 0.25,
            connections: 1,
            failures: 2,
        };
        assert_eq!(batches, wanted);
    }

    #[test]
    fn the_status_and_the_body_of_an_answer_are_found() {
        let answer = "HTTP/1.1 201 Created\r\nDate: today\r\n\r\n{\"name\":\"a\"}";
        assert_eq!(parse_answer(answer), Some((201, "{\"name\":\"a\"}")));
        assert_eq!(parse_answer("HTTP/1.1 202 Accepted\r\n\r\n"), Some((202, "")));
        assert_eq!(parse_answer("what?"), None);
    }
}
