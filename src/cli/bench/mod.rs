//! `outbox-relay bench`: how fast the relay is here, and what keeps it from being faster.

use super::exit::Failed;
use super::run::Signals;
use super::{ConfigFile, block_on};
use crate::bench::drain;
use crate::bench::place::{self, Place};
use crate::bench::relay::Relay;
use crate::bench::settings::Settings;
use crate::bench::verify::{self, Committed};
use crate::bench::{BenchError, Shape};
use anyhow::anyhow;
use clap::Args;

/// Measure how fast events reach Kafka here, and what limits it.
#[derive(Debug, Args)]
pub struct Bench {
    #[command(flatten)]
    config: ConfigFile,
    /// Rows of each drain.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    rows: u64,
}

impl Bench {
    /// Runs it.
    pub fn run(self) -> Result<(), Failed> {
        let config = self.config.load()?;
        let settings = Settings::of_this_program(self.config.path())?;
        drop(config);
        block_on(bench(settings, self.rows))?
    }
}

async fn bench(settings: Settings, rows: u64) -> Result<(), Failed> {
    let mut signals = Signals::new()?;
    for leftover in place::leftovers(&settings).await? {
        eprintln!("removing what a killed run has left: schema {}", leftover.schema);
        place::remove_leftover(&settings, &leftover).await?;
    }
    let place = Place::create(settings).await?;
    let measured = tokio::select! {
        measured = measure(&place, rows) => measured.map_err(Failed::from),
        () = signals.next() => Err(Failed::Failure(anyhow!("interrupted"))),
    };
    let removed = place.remove().await.map_err(Failed::from);
    measured.and(removed)
}

async fn measure(place: &Place, rows: u64) -> Result<(), BenchError> {
    eprintln!("{:?} {:?}", place.server(), place.parties());
    let shape = Shape { rows, keys: 1_000, payload_bytes: 246, topics: 1, hot_share: 0.0 };
    let route = place.route(&shape, 12).await?;
    eprintln!("{:?}", place.fill(&shape).await?);
    let mut relay = Relay::start(place, &route).await?;
    let drain = drain::watch(place, &route, &mut relay, rows).await?;
    let batches = relay.metrics().await?.batches();
    relay.stop().await?;
    println!("{drain:#?} {batches:?}");
    let verdict = verify::read(&place.config().kafka, &route, &shape, &Committed(vec![rows])).await?;
    println!("{verdict:?}");
    place.close(route).await
}

impl From<BenchError> for Failed {
    fn from(error: BenchError) -> Failed {
        use crate::relay::failure::{FailureKind, FaultKind};
        let unavailable = match &error {
            BenchError::Postgres(fault) => fault.kind == FaultKind::Unavailable,
            BenchError::Kafka(failure) => matches!(failure.kind, FailureKind::Cluster | FailureKind::Unknown),
            _ => false,
        };
        match error {
            BenchError::Configuration(_) => Failed::Configuration(error.into()),
            _ if unavailable => Failed::Unavailable(error.into()),
            _ => Failed::Failure(error.into()),
        }
    }
}
