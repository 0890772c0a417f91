//! The command line of `outbox-bench`.

use crate::checker::Verdict;
use crate::load::{BYTES_LEAST, Shape};
use crate::place::{Place, Site};
use crate::plan::{self, Part, Plan};
use crate::report::Report;
use crate::settings::{self, Settings};
use crate::{BenchError, table};
use anyhow::anyhow;
use clap::{CommandFactory, FromArgMatches, Parser};
use clap_complete::Shell;
use outbox_relay::cli::failed::Failed;
use outbox_relay::cli::frame::{self, block_on};
use outbox_relay::cli::run::Signals;
use outbox_relay::cli::{completions, log, long_version, output};
use outbox_relay::relay::failure::{FailureKind, FaultKind};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const NAME: &str = "outbox-bench";

/// Measure throughput and latency on your own servers.
#[derive(Debug, Parser)]
#[command(name = NAME, version, max_term_width = 100, after_help = "\
The benchmark creates its own schema in the configured database (outbox_bench_ plus eight hexadecimal digits) and \
its own topics. Their names start with the part of [outbox] topic before the first placeholder, followed by the schema \
name. The benchmark does not read or write the configured outbox or its topics. It removes the schema and the topics \
at the end, on Ctrl-C and after an error. If a run is killed, the next run of the same role reports and removes what is \
left. Consumers and mirrors that subscribe to topics by prefix or pattern get the records of the benchmark too. It \
refuses a database with a publication of all tables, because its subscribers would get the tables of the benchmark.

The role needs CREATE on the database; set OUTBOX_RELAY__POSTGRES__URL to use another role. The Kafka user must be \
allowed to create, write, read and delete these topics. The benchmark puts full load on both servers for a minute or \
two, so do not run it in production at peak hours.

Parts (select with --only):
  idle           CPU of an idle relay and of PostgreSQL
  limits         each half of the relay alone: claim and settle, or produce
  drain          publish a backlog of --rows rows: once marking sent rows, once deleting them
  flow           8 writers at full speed for --seconds, without and with a relay
  steady         10, 100, 1,000 and 5,000 rows/s for --seconds: latency from COMMIT to a consumer
  held-snapshot  the drain while a transaction holds a snapshot open, as a backup does
  hot-key        the drain with one key for all rows, and with one key for half of the rows

Units: rows/s; CPU in microseconds per row (user and system) or in % of one core; peak resident memory in MiB; latency \
in milliseconds. `of limit` compares a drain with the lowest of three limits: claim and settle alone, produce alone, \
and the CPU of all cores divided by the CPU that the relay, PostgreSQL and Kafka use per row. CPU and memory of \
PostgreSQL and Kafka are measured only if their processes are visible on this machine. Any other load on the \
machine distorts the results.

Every record is read back and compared with what was committed. --json prints the same data as one object. Its \
`format` stays 1 until a field is removed or changes meaning. Later versions may add fields.

Examples:
  outbox-bench --config config.toml
  outbox-bench --config config.toml --only drain,steady --rows 2000000 --payload 1024
  OUTBOX_RELAY__RELAY__WORKERS=6 outbox-bench --config config.toml --only drain --json

Exit codes: 0 success, 1 events lost or out of order, or the benchmark failed, 2 usage error, 69 PostgreSQL or Kafka \
unreachable, 78 invalid configuration, missing privilege, or outbox-relay not found.")]
struct Bench {
    /// Configuration file. Environment variables named OUTBOX_RELAY__SECTION__KEY override its settings. Without a
    /// file, they must provide all required settings.
    #[arg(short, long, value_name = "FILE", env = frame::CONFIG_VARIABLE, hide_env_values = true)]
    config: Option<OsString>,
    /// Run only these parts, separated by commas (default: all).
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    only: Vec<Part>,
    /// Rows per drain.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    rows: u64,
    /// Number of keys; each row gets a random one.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    keys: u64,
    /// Payload size in bytes (JSON, about half of it random).
    #[arg(long, value_name = "BYTES", default_value_t = 246, value_parser = payload)]
    payload: usize,
    /// Partitions per topic.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(i32).range(1..=1_000))]
    partitions: i32,
    /// Duration of each idle, flow and steady measurement.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
    /// outbox-relay binary to measure (default: next to this program, then in PATH).
    #[arg(long, value_name = "PATH")]
    relay: Option<PathBuf>,
    /// Print a completion script for this shell and exit.
    #[arg(long, value_name = "SHELL", exclusive = true)]
    completions: Option<Shell>,
}

/// The command line. The manual page and the completions are generated from it.
pub fn command() -> clap::Command {
    Bench::command()
}

/// Runs the program, and returns its exit code.
pub fn main() -> ExitCode {
    log::abort_on_panic();
    let matches = command().long_version(long_version()).get_matches();
    let bench = Bench::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match bench.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => failed.report(),
    }
}

impl Bench {
    fn run(self) -> Result<(), Failed> {
        if let Some(shell) = self.completions {
            let script = completions(shell, &mut command(), NAME);
            return output::print(script.as_bytes()).map(|_| ());
        }
        let file = self.config.as_deref().and_then(frame::named);
        frame::load(file.as_deref())?;
        let settings = Settings::new(settings::find(self.relay.as_deref())?, file);
        let (report, ended) = block_on(bench(settings, &self.plan()))??;
        // Even if it is not complete.
        if report.has_results() {
            let text = if self.json { output::json(&report)? + "\n" } else { table::render(&report) };
            output::print(text.as_bytes())?;
        }
        ended?;
        if report.verdicts().all(Verdict::is_good) {
            Ok(())
        } else {
            Err(Failed::Failure(anyhow!("what arrived is not what was committed")))
        }
    }

    fn plan(&self) -> Plan {
        Plan {
            parts: self.only.clone(),
            shape: Shape {
                rows: self.rows,
                keys: self.keys,
                payload_bytes: self.payload,
                topics: 1,
                hot_share: 0.0,
            },
            partitions: self.partitions,
            time: Duration::from_secs(self.seconds),
        }
    }
}

/// The maximum payload at librdkafka's default limit, with room for the rest of the record.
fn payload(text: &str) -> Result<usize, String> {
    const MOST: usize = 990_000;
    let bytes: usize = text.parse().map_err(|_| "not a number of bytes".to_owned())?;
    if (BYTES_LEAST..=MOST).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(format!("{bytes} is not between {BYTES_LEAST} and {MOST}"))
    }
}

/// Returns what was measured, and how the measurement and the removal of the schema ended.
async fn bench(settings: Settings, plan: &Plan) -> Result<(Report, Result<(), Failed>), Failed> {
    let mut signals = Signals::new()?;
    let site = tokio::select! {
        site = arrive(settings) => site?,
        () = signals.next() => return Err(interrupted()),
    };
    let place = Place::make(site).await?;
    let mut report = Report::default();
    let measured = tokio::select! {
        measured = plan::run(&place, plan, &say, &mut report) => measured.map_err(Failed::from),
        () = signals.next() => Err(interrupted()),
    };
    // Removes everything however the measurement ended. A second signal has its default effect.
    let schema = place.schema().to_owned();
    let removed = tokio::select! {
        removed = place.remove() => removed.map_err(Failed::from),
        () = signals.next() => Err(Failed::Failure(anyhow!(
            "interrupted while the schema and the topics were being removed: the next run reports and removes what is left"
        ))),
    };
    if removed.is_ok() {
        say(&format!("removed the schema {schema} and its topics"));
    }
    let ended = match (measured, removed) {
        (Err(failed), Err(left)) => {
            left.report();
            Err(failed)
        }
        (measured, removed) => measured.and(removed),
    };
    Ok((report, ended))
}

/// Connects, and removes what killed runs have left behind.
async fn arrive(settings: Settings) -> Result<Site, BenchError> {
    let site = Site::connect(settings).await?;
    for leftover in site.leftovers().await? {
        let topics = output::counted(leftover.topics.len() as u64, "topic");
        say(&format!("removing the schema {} and {topics}, left by a killed run", leftover.schema));
        match site.remove(&leftover).await {
            Ok(()) => {}
            // Otherwise, each run would leave topics behind.
            Err(error @ BenchError::Kafka(_)) => return Err(error),
            Err(error) => say(&format!("not removed: {error}")),
        }
    }
    Ok(site)
}

/// A closed stderr must not end the process before the schema is removed.
fn say(text: &str) {
    _ = writeln!(io::stderr(), "{text}");
}

fn interrupted() -> Failed {
    Failed::Failure(anyhow!("interrupted"))
}

impl From<BenchError> for Failed {
    fn from(error: BenchError) -> Failed {
        let unavailable = match &error {
            BenchError::Postgres(fault) => fault.kind == FaultKind::Unavailable,
            BenchError::Kafka(failure) => {
                matches!(failure.kind, FailureKind::Cluster | FailureKind::Unknown)
            }
            _ => false,
        };
        match error {
            BenchError::Configuration(_) => Failed::Configuration(error.into()),
            _ if unavailable => Failed::Unavailable(error.into()),
            _ => Failed::Failure(error.into()),
        }
    }
}
