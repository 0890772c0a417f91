//! `make bench`: measures the relay and Debezium, and writes `docs/benchmarks.md`, and `TARGETS.md` and `RUNS.md` in `benchmarks/`.
#![forbid(unsafe_code)]

mod database;
mod debezium;
mod delay;
mod figures;
mod machine;
mod parts;
mod report;
mod results;
mod scenarios;
mod size;
mod world;

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use parts::Part;
use results::{Outcome, Store};
use size::Size;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use world::World;

/// Compares outbox-relay with Debezium. scripts/bench starts the servers that it needs.
#[derive(Debug, Parser)]
#[command(max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure, and keep the previous results of the parts that are not measured now.
    Run(Run),
    /// Write docs/benchmarks.md, benchmarks/TARGETS.md, benchmarks/RUNS.md and the charts from all results.
    Report {
        /// The folder for the page and the charts.
        #[arg(long, default_value = "docs")]
        docs: PathBuf,
        /// The folder that contains the results, and to which TARGETS.md and RUNS.md are written.
        #[arg(long, default_value = "benchmarks")]
        benchmarks: PathBuf,
    },
}

#[derive(Debug, Args)]
struct Run {
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

/// Uses one thread, because the measuring program shares the machine with the measured one.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    tokio::task::LocalSet::new().run_until(run(Cli::parse().command)).await
}

async fn run(command: Command) -> ExitCode {
    let done = match command {
        Command::Run(run) => tokio::select! {
            done = measure(&run) => done,
            _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        },
        Command::Report { docs, benchmarks } => Store::new(&benchmarks).load().and_then(|results| {
            report::write(&results, &docs, &benchmarks)?;
            eprintln!(
                "wrote {} and the pages in {}",
                docs.join("benchmarks.md").display(),
                benchmarks.display()
            );
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

/// The folder for reduced results and logs.
fn folder() -> anyhow::Result<PathBuf> {
    let folder = PathBuf::from(world::variable("OUTBOX_BENCHMARKS_FOLDER")?);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

/// Measures one part after another and saves the results after each. If a part fails, the others are still measured.
async fn measure(run: &Run) -> anyhow::Result<()> {
    let folder = folder()?;
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
        eprintln!("{part}: {}", part.about());
        let mut outcome = Outcome { setting: setting.clone(), ..Outcome::default() };
        match part.measure(&world, &size, &mut outcome).await {
            Ok(()) => {
                outcome.at = machine::now();
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
