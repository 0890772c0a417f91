//! `make bench`: measures the relay and Debezium, and writes `docs/benchmarks.md`, and `TARGETS.md` and `RUNS.md` in
//! `bench/`.

mod charts;
mod debezium;
mod drains;
mod network;
mod obstacles;
mod pages;
mod rates;
mod relays;
mod results;
mod run;
mod scenarios;
mod soak;
mod world;

use self::results::{Outcome, Store};
use self::run::Run;
use self::world::{Size, World, now, variable};
use crate::place::Place;
use anyhow::{Context, anyhow, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use outbox_relay::cli::block_on;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Compares outbox-relay with Debezium. scripts/bench starts the servers that it needs.
#[derive(Debug, Parser)]
#[command(name = "outbox-benchmarks", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure, and keep the previous results of the parts that are not measured now.
    Run(RunArgs),
    /// Write docs/benchmarks.md, bench/TARGETS.md, bench/RUNS.md and the charts from all results.
    Report {
        /// The folder for the page and the charts.
        #[arg(long, default_value = "docs")]
        docs: PathBuf,
        /// The folder that contains the results, and to which TARGETS.md and RUNS.md are written.
        #[arg(long, default_value = "bench")]
        benchmarks: PathBuf,
    },
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Measure only these parts, separated by commas [default: all parts].
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    only: Vec<Part>,
    /// Skip the parts that already have results from this machine and version.
    #[arg(long)]
    resume: bool,
    /// Number of runs of each comparison.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Rows per drain [default: 2000000]. Other loads change in proportion.
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u64).range(1_000..))]
    rows: Option<u64>,
    /// Use a twentieth of the rows and a sixth of the duration, to check that everything works.
    #[arg(long, conflicts_with = "rows")]
    quick: bool,
}

/// A part that can be chosen with `--only`. They are measured in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Debezium,
    Drain,
    Memory,
    Steady,
    Soak,
    Flow,
    HeldSnapshot,
    HotKey,
    HeldTopic,
    Retained,
    Outage,
    Replicas,
    Shapes,
    Network,
}

/// The name of each part, and its scenarios and their contents, for the terminal.
const PARTS: [(&str, &str); 14] = [
    ("debezium", "the fastest settings of Debezium"),
    ("drain", "scenarios 1 to 3: drain a backlog with mark, with delete, and with Debezium"),
    ("memory", "scenario 4: memory during drains of larger rows"),
    ("steady", "scenario 5: latency and cost at steady rates, and the cost of idling"),
    ("soak", "scenario 15: one hour at 1,000 rows/s with the reaper and autovacuum"),
    ("flow", "scenario 6: writers at full speed alone, with the relay, and with Debezium"),
    ("held-snapshot", "scenario 7: drain a backlog while a snapshot is held open"),
    ("hot-key", "scenario 8: one key has all rows, or half of the rows"),
    ("held-topic", "scenario 9: rows of a missing topic before the others"),
    ("retained", "scenario 10: sent rows in the table, and the reaper"),
    ("outage", "scenario 11: half an hour without Kafka"),
    ("replicas", "scenario 12: several relays on one table"),
    ("shapes", "scenario 13: many topics, many keys, small and large payloads"),
    ("network", "scenario 14: long round trips to PostgreSQL and Kafka"),
];

/// Runs the program `outbox-benchmarks`, and returns its exit code.
pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(run) => match block_on(measure(&run)) {
            Ok(done) => done,
            Err(failed) => return failed.report(),
        },
        Command::Report { docs, benchmarks } => Store::new(&benchmarks).load().and_then(|results| {
            pages::write(&results, &docs, &benchmarks)?;
            let page = docs.join("benchmarks.md");
            eprintln!("wrote {} and the pages in {}", page.display(), benchmarks.display());
            Ok(())
        }),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("outbox-benchmarks: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(run: &RunArgs) -> anyhow::Result<()> {
    tokio::select! {
        done = measure_parts(run) => done,
        _ = tokio::signal::ctrl_c() => Err(anyhow!("interrupted")),
    }
}

/// Measures one part after another and saves the results after each. If a part fails, the others are still measured.
async fn measure_parts(run: &RunArgs) -> anyhow::Result<()> {
    // For reduced results and logs.
    let folder = PathBuf::from(variable("OUTBOX_BENCHMARKS_FOLDER")?);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let world = World::from_environment(folder.clone())?;
    let size = Size::new(run.runs, run.rows, run.quick);
    let setting = world.describe().await?;
    let mut failed = Vec::new();
    for part in Part::chosen(&run.only) {
        let store = if part.is_reduced(&size) { Store::new(&folder) } else { Store::published() };
        if run.resume && store.load()?.parts.get(part.name()).is_some_and(|kept| kept.setting == setting) {
            eprintln!("{part}: skipped, because it has results from this machine and version");
            continue;
        }
        let begun = Instant::now();
        eprintln!("{part}: {}", PARTS[part as usize].1);
        let mut outcome = Outcome { setting: setting.clone(), ..Outcome::default() };
        match part.measure(&world, &size, &mut outcome).await {
            Ok(()) => {
                outcome.at = now();
                let mut results = store.load()?;
                results.parts.insert(part.name().to_owned(), outcome);
                store.save(&results)?;
                eprintln!("{part}: took {:.0} s", begun.elapsed().as_secs_f64());
            }
            Err(error) => {
                eprintln!("{part}: FAILED: {error:#}");
                failed.push(part.name());
            }
        }
    }
    if !failed.is_empty() {
        bail!("not measured: {}", failed.join(", "));
    }
    Ok(())
}

impl Part {
    /// The chosen parts, or all if none were chosen.
    fn chosen(only: &[Part]) -> Vec<Part> {
        let all = Part::value_variants().iter().copied();
        all.filter(|part| only.is_empty() || only.contains(part)).collect()
    }

    /// Whether a run of this size yields less than a full result. One run of the soak is a full one.
    fn is_reduced(self, size: &Size) -> bool {
        if self == Part::Soak { size.is_scaled() } else { size.is_reduced() }
    }

    fn name(self) -> &'static str {
        PARTS[self as usize].0
    }

    /// Removes everything that earlier parts have left on the servers, and measures the part in a new scratch schema.
    async fn measure(self, world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
        world.clean().await?;
        let place = Place::create(world.settings()).await?;
        let mut run = Run { world, size, place: &place, outcome };
        match self {
            Part::Debezium => Box::pin(drains::tunings(&mut run)).await?,
            Part::Drain => Box::pin(drains::comparison(&mut run)).await?,
            Part::Memory => Box::pin(drains::memory(&mut run)).await?,
            Part::Shapes => Box::pin(drains::shapes(&mut run)).await?,
            Part::HotKey => Box::pin(drains::hot_key(&mut run)).await?,
            Part::Steady => Box::pin(rates::steady(&mut run)).await?,
            Part::Flow => Box::pin(rates::full_speed(&mut run)).await?,
            Part::Soak => Box::pin(soak::measure(&mut run)).await?,
            Part::HeldSnapshot => Box::pin(obstacles::held_snapshot(&mut run)).await?,
            Part::HeldTopic => Box::pin(obstacles::held_topic(&mut run)).await?,
            Part::Retained => Box::pin(obstacles::retained(&mut run)).await?,
            Part::Outage => Box::pin(obstacles::outage(&mut run)).await?,
            Part::Replicas => Box::pin(relays::measure(&mut run)).await?,
            Part::Network => Box::pin(network::measure(&mut run)).await?,
        }
        Ok(place.remove().await?)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scenario_is_measured_by_an_existing_part() {
        for scenario in scenarios::SCENARIOS {
            for check in scenario.checks {
                let part = scenario.part_of(check);
                let known = Part::value_variants().iter().any(|known| known.name() == part);
                assert!(known, "{}: there is no part {part}", scenario.name);
            }
        }
    }

    #[test]
    fn parts_are_chosen_by_their_names() {
        for part in Part::value_variants() {
            assert_eq!(Part::from_str(part.name(), false), Ok(*part));
        }
        assert_eq!(Part::chosen(&[Part::Drain]), [Part::Drain]);
        assert_eq!(Part::chosen(&[]).len(), Part::value_variants().len());
    }
}
