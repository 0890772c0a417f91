//! The chaos run: three relays under load, faults drawn from a seed, and a checker that shares no code with the relay.
//! The checker compares the writers' ledger with Kafka and uses no information from the relays.
//!
//! `make chaos MINUTES=10 SEED=7 RATE=1000` runs it for long with the release binary. One minute of it is a test.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions; this covers what they call

mod application;
mod checker;
mod faults;
mod reading;
mod report;
mod run;
mod schedule;
#[path = "../support/mod.rs"]
mod support;
mod times;
mod world;
mod writers;

use run::Plan;
use std::path::Path;
use std::time::Duration;

/// A number from an environment variable.
fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

/// Fails the test if a promise is broken.
async fn run(plan: Plan) {
    let report = plan.run().await;
    println!("\n{report}");
    let broken = report.broken_promises();
    for promise in &broken {
        println!("BROKEN: {promise}");
    }
    println!("{}", report.last_line());
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("chaos-last-line"), report.last_line())
        .unwrap();
    assert!(broken.is_empty(), "seed {}: {broken:#?}", plan.seed);
}

#[tokio::test]
async fn a_minute_of_faults_loses_and_reorders_nothing() {
    // The schedule of this minute has faults of each kind: of a relay, of PostgreSQL, of Kafka and of a topic.
    let seed = variable("SEED").unwrap_or(51);
    run(Plan { lasts: Duration::from_secs(60), seed, events_a_second: 500 }).await;
}

/// Run by `make chaos`.
#[tokio::test]
#[ignore = "runs for MINUTES minutes: make chaos"]
async fn many_minutes_of_faults_lose_and_reorder_nothing() {
    let seed = variable("SEED").unwrap_or_else(|| fastrand::u64(..1_000_000));
    let minutes = variable("MINUTES").unwrap_or(10);
    let rate = variable("RATE").map_or(2_000, |rate| u32::try_from(rate).unwrap());
    run(Plan { lasts: Duration::from_secs(60 * minutes), seed, events_a_second: rate }).await;
}
