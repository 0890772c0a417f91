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
use clap::{Args, Parser, Subcommand};
use outbox_relay::cli::frame::block_on;
use std::path::PathBuf;
use std::pin::Pin;
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
    #[arg(long, value_name = "PARTS", value_delimiter = ',', value_parser = PARTS.map(|part| part.name))]
    only: Vec<String>,
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

/// A part that can be chosen with `--only`.
struct Part {
    name: &'static str,
    /// The scenarios and their contents, for the terminal.
    about: &'static str,
    measure: Measure,
}

type Measure = for<'a> fn(&'a mut Run<'_>) -> Pin<Box<dyn Future<Output = anyhow::Result<()>> + 'a>>;

const fn part(name: &'static str, about: &'static str, measure: Measure) -> Part {
    Part { name, about, measure }
}

/// All parts, in the order in which they are measured.
const PARTS: [Part; 14] = [
    part("debezium", "the fastest settings of Debezium", |run| Box::pin(drains::tunings(run))),
    part("drain", "scenarios 1 to 3: drain a backlog with mark, with delete, and with Debezium", |run| {
        Box::pin(drains::comparison(run))
    }),
    part("memory", "scenario 4: memory during drains of larger rows", |run| Box::pin(drains::memory(run))),
    part("steady", "scenario 5: latency and cost at steady rates, and the cost of idling", |run| {
        Box::pin(rates::steady(run))
    }),
    part("soak", "scenario 15: one hour at 1,000 rows/s with the reaper and autovacuum", |run| {
        Box::pin(soak::measure(run))
    }),
    part("flow", "scenario 6: writers at full speed alone, with the relay, and with Debezium", |run| {
        Box::pin(rates::full_speed(run))
    }),
    part("held-snapshot", "scenario 7: drain a backlog while a snapshot is held open", |run| {
        Box::pin(obstacles::held_snapshot(run))
    }),
    part("hot-key", "scenario 8: one key has all rows, or half of the rows", |run| {
        Box::pin(drains::hot_key(run))
    }),
    part("held-topic", "scenario 9: rows of a missing topic before the others", |run| {
        Box::pin(obstacles::held_topic(run))
    }),
    part("retained", "scenario 10: sent rows in the table, and the reaper", |run| {
        Box::pin(obstacles::retained(run))
    }),
    part("outage", "scenario 11: half an hour without Kafka", |run| Box::pin(obstacles::outage(run))),
    part("replicas", "scenario 12: several relays on one table", |run| Box::pin(relays::measure(run))),
    part("shapes", "scenario 13: many topics, many keys, small and large payloads", |run| {
        Box::pin(drains::shapes(run))
    }),
    part("network", "scenario 14: long round trips to PostgreSQL and Kafka", |run| {
        Box::pin(network::measure(run))
    }),
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
    let chosen = |part: &&Part| run.only.is_empty() || run.only.iter().any(|name| name == part.name);
    for part in PARTS.iter().filter(chosen) {
        let name = part.name;
        let store = if part.is_reduced(&size) { Store::new(&folder) } else { Store::published() };
        if run.resume && store.load()?.parts.get(name).is_some_and(|kept| kept.setting == setting) {
            eprintln!("{name}: skipped, because it has results from this machine and version");
            continue;
        }
        let begun = Instant::now();
        eprintln!("{name}: {}", part.about);
        let mut outcome = Outcome { setting: setting.clone(), ..Outcome::default() };
        match part.measure(&world, &size, &mut outcome).await {
            Ok(()) => {
                outcome.at = now();
                let mut results = store.load()?;
                results.parts.insert(name.to_owned(), outcome);
                store.save(&results)?;
                eprintln!("{name}: took {:.0} s", begun.elapsed().as_secs_f64());
            }
            Err(error) => {
                eprintln!("{name}: FAILED: {error:#}");
                failed.push(name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("not measured: {}", failed.join(", "));
    }
    Ok(())
}

impl Part {
    /// Whether a run of this size yields less than a full result. One run of the soak is a full one.
    fn is_reduced(&self, size: &Size) -> bool {
        if self.name == "soak" { size.is_scaled() } else { size.is_reduced() }
    }

    /// Removes everything that earlier parts have left on the servers, and measures the part in a new scratch schema.
    async fn measure(&self, world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
        world.clean().await?;
        let place = Place::create(world.settings()).await?;
        (self.measure)(&mut Run { world, size, place: &place, outcome }).await?;
        Ok(place.remove().await?)
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
                assert!(
                    PARTS.iter().any(|known| known.name == part),
                    "{}: there is no part {part}",
                    scenario.name
                );
            }
        }
    }

    #[test]
    fn parts_are_chosen_by_their_names() {
        let only = |names: &str| Cli::try_parse_from(["outbox-benchmarks", "run", "--only", names]);
        for part in PARTS {
            assert!(only(part.name).is_ok(), "{}", part.name);
        }
        assert!(only("drain,steady").is_ok() && only("drains").is_err());
    }
}
