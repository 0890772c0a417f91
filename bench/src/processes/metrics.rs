//! The metrics of a relay at `/metrics`.

use crate::error::BenchError;
use serde::Serialize;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const WITHIN: Duration = Duration::from_secs(5);
const DOING: &str = "reading the relay's metrics";

/// Samples by name, without those that have labels.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Vec<(String, f64)>);

/// The batches of a relay so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Batches {
    /// The number of batches.
    pub count: u64,
    /// The average number of rows per batch.
    pub rows: f64,
    /// The average time from the claim of a batch to its confirmed COMMIT, in seconds.
    pub seconds: f64,
    /// The part of it from the first row sent to the last acknowledgement, in seconds.
    pub publish_seconds: f64,
    /// The number of connections to PostgreSQL that were opened.
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

    /// The statistics of batches.
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

/// Fetches the metrics.
pub(crate) async fn fetch(address: &str) -> Result<Metrics, BenchError> {
    let asked = tokio::time::timeout(WITHIN, get(address)).await;
    let answer = asked.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
    answer.map(|text| parse(&text)).map_err(|source| BenchError::System { doing: DOING, source })
}

async fn get(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
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
        let stats = std::sync::Arc::new(Stats::new());
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
}
