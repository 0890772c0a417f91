//! `outbox-relay status`: the state of an outbox, from the database and from a relay on this host, if one answers.

pub(in crate::cli) mod local_relay;
mod screen;
mod watch;

use super::frame;
use super::frame::Failed;
use super::frame::{ConfigFile, block_on};
use super::output;
use crate::status::monitor::{Limits, Monitor, MonitorError};
use crate::status::report::Report;
use clap::Args;
use std::time::Duration;

/// How long a single report measures the rates.
const SAMPLE: Duration = Duration::from_secs(1);
const INTERVAL_MIN: Duration = Duration::from_millis(200);
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// Show backlog, throughput and problems.
#[derive(Debug, Args)]
#[command(after_help = "\
The first line is the verdict (healthy, behind or not relaying), with the reason and the next command to run.

The data comes from the database, so the command works when no relay is running and when Kafka is unavailable. If a \
relay on this host answers at [admin] listen, its state is included. Every query is bounded, so you can run the \
command on tables of any size. It takes one second to measure the rates.

Examples:
  outbox-relay status --config /etc/outbox-relay/config.toml
  outbox-relay status --config config.toml --watch
  outbox-relay status --config config.toml --json | jq .backlog.oldest_age_seconds

Exit codes: 0 success (whatever the verdict), 1 failure, 2 usage error, 69 PostgreSQL unreachable (--watch keeps \
trying instead), \
78 invalid configuration or schema, or missing privileges.")]
pub(crate) struct Status {
    #[command(flatten)]
    config: ConfigFile,
    /// Print a JSON object; with --watch, one per line. Later versions may add fields, but never rename or remove them.
    /// docs/status.md describes the fields.
    #[arg(long)]
    json: bool,
    /// Refresh at this interval until Ctrl-C [default: 2s].
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "2s", value_parser = interval)]
    watch: Option<Duration>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|_| "write a number and a unit, such as 2s")?;
    if (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) {
        Ok(interval)
    } else {
        Err("must be from 200ms to 1h".to_owned())
    }
}

impl Status {
    pub(crate) fn run(self) -> Result<(), Failed> {
        let path = self.config.path();
        let config = self.config.load_for_database()?;
        block_on(async {
            let mut monitor =
                Monitor::new(config, path.as_deref(), "status", Limits::default()).map_err(failed)?;
            match self.watch {
                Some(interval) => watch::watch(&mut monitor, interval, self.json).await,
                None => {
                    let report = report(&mut monitor, Some(SAMPLE)).await?;
                    output::print(shown(&report, self.json)?.as_bytes()).map(|_| ())
                }
            }
        })?
    }
}

/// A report with the relay on this host.
async fn report(monitor: &mut Monitor, sample: Option<Duration>) -> Result<Report, Failed> {
    let here = local_relay::request(monitor.config().admin.listen);
    let report = monitor.report(sample, here).await.map_err(failed)?;
    frame::warn_of(monitor.take_difference().as_deref());
    Ok(report)
}

fn failed(error: MonitorError) -> Failed {
    match error {
        MonitorError::Settings(error) => Failed::Unavailable(anyhow::Error::new(error)),
        MonitorError::Check(error) => error.into(),
        MonitorError::Read(fault) => fault.into(),
    }
}

fn shown(report: &Report, json: bool) -> Result<String, Failed> {
    if !json {
        return Ok(report.to_string());
    }
    let json = serde_json::to_string_pretty(report)
        .map_err(|error| Failed::Failure(anyhow::Error::new(error).context("writing JSON")))?;
    Ok(json + "\n")
}
