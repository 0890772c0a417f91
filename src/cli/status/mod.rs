//! `outbox-relay status`: how an outbox stands. The database tells, and a relay of this machine, if it answers.

mod here;
mod onlooker;
mod report;
mod screen;
mod units;
mod verdict;
mod watch;

use super::exit::Failed;
use super::{ConfigFile, block_on, output};
use clap::Args;
use onlooker::Onlooker;
use report::Report;
use std::time::Duration;

/// How long a single look measures the rates.
const SAMPLE: Duration = Duration::from_secs(1);
const INTERVAL_MIN: Duration = Duration::from_millis(200);
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// Show how far behind the outbox is, what it waits for, and why.
#[derive(Debug, Args)]
#[command(after_help = "\
The first line is the verdict: healthy, behind or not relaying, with why, and the one command that tells more.

Asks the database, so it also works when no relay runs and when Kafka is away; and the relay of this machine, at [admin] \
listen, what it lacks, if it answers. Every question is bounded: it can be asked of a table of any size. It takes a \
second, in which it measures the rates.

Examples:
  outbox-relay status --config /etc/outbox-relay/config.toml
  outbox-relay status --config config.toml --watch
  outbox-relay status --config config.toml --json | jq .backlog.oldest_age_seconds

Exit codes: 0 shown, whatever it says, 2 usage, 69 Postgres cannot be reached (with --watch it says so, and goes on), 78 \
the configuration or the schema has to be mended.")]
pub struct Status {
    #[command(flatten)]
    config: ConfigFile,
    /// Print one JSON object: fields may be added in later versions, none is renamed or removed. With --watch, one a
    /// line. docs/status.md lists them.
    #[arg(long)]
    json: bool,
    /// Look again and again, until Ctrl-C.
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "2s", value_parser = interval)]
    watch: Option<Duration>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| format!("{error}: for instance 2s"))?;
    if (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) {
        Ok(interval)
    } else {
        Err("it must be from 200ms to 1h".to_owned())
    }
}

impl Status {
    /// Runs it.
    pub fn run(self) -> Result<(), Failed> {
        let path = self.config.path();
        let config = self.config.load_for_database()?;
        block_on(async {
            let mut onlooker = Onlooker::new(config, path.as_deref())?;
            match self.watch {
                Some(interval) => watch::watch(&mut onlooker, interval, self.json).await,
                None => {
                    let report = onlooker.look(Some(SAMPLE)).await?;
                    output::print(shown(&report, self.json)?.as_bytes()).map(|_| ())
                }
            }
        })?
    }
}

/// The screen, or the JSON object over several lines.
fn shown(report: &Report, json: bool) -> Result<String, Failed> {
    if !json {
        return Ok(report.to_string());
    }
    let json = serde_json::to_string_pretty(report)
        .map_err(|error| Failed::Failure(anyhow::Error::new(error).context("writing JSON")))?;
    Ok(json + "\n")
}
