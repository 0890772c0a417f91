//! The chaos run of the example: clients that retry, every process killed at random, both servers restarted, and
//! duplicates forced. Afterwards, SQL checks whether each payment happened once in the ledger, at the provider and at
//! the consumer.
//!
//! `make chaos-payments MINUTES=5 SEED=7` runs a long one. A short one is a test.

#![allow(clippy::unwrap_used)] // clippy.toml allows it in test functions, this also in what they call

mod checks;
mod faults;
mod figures;
mod journals;
mod process;
mod quiet;
mod run;
mod schedule;
mod support;
mod world;

use run::{Outcome, Plan};
use schedule::Kind;
use std::path::Path;
use std::time::Duration;
use tokio::sync::Mutex;

/// Runs are sequential, because each has two servers and eleven processes.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// A number from an environment variable.
fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

async fn run(plan: Plan) -> Outcome {
    let _turn = ONE_AT_A_TIME.lock().await;
    let outcome = plan.run().await;
    println!("\n{outcome}");
    std::fs::write(
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("chaos-payments-last-line"),
        outcome.last_line(),
    )
    .unwrap();
    outcome
}

/// For `make test`, where the broker is not stopped twice within a minute.
const SHORT: [Kind; 12] = [
    Kind::KillRelay,
    Kind::KillProvider,
    Kind::KillApi,
    Kind::FreezeApi,
    Kind::KillConsumer,
    Kind::FreezeConsumer,
    Kind::KillClient,
    Kind::RestartPostgres,
    Kind::KillPostgres,
    Kind::KillKafka,
    Kind::SendAgain,
    Kind::RewindConsumers,
];

/// The kinds of faults that reveal mistakes.
const REVEALING: [Kind; 6] = [
    Kind::KillApi,
    Kind::FreezeApi,
    Kind::KillProvider,
    Kind::KillPostgres,
    Kind::SendAgain,
    Kind::RewindConsumers,
];

const MISTAKES: [&str; 3] = ["no-inbox", "new-key-for-provider", "response-after-commit"];

#[tokio::test]
async fn each_payment_happens_once_whatever_is_killed() {
    let seed = variable("SEED").unwrap_or(7);
    let lasts = Duration::from_secs(15);
    let outcome = run(Plan { lasts, seed, kinds: &SHORT, mistakes: &[] }).await;
    assert!(outcome.broken.is_empty(), "seed {seed}: {:#?}", outcome.broken);
}

/// A run with common mistakes. The checks must find each of them.
#[tokio::test]
async fn common_mistakes_are_found() {
    let lasts = Duration::from_secs(18);
    let outcome = run(Plan { lasts, seed: 7, kinds: &REVEALING, mistakes: &MISTAKES }).await;
    for found in [checks::EVENT_POSTED_TWICE, checks::CHARGED_ONCE, checks::IN_LEDGER_ONCE] {
        assert!(outcome.broken.iter().any(|broken| broken.contains(found)), "{found}: {:#?}", outcome.broken);
    }
}

/// Run by `make chaos-payments`.
#[tokio::test]
#[ignore = "runs for MINUTES minutes: make chaos-payments"]
async fn many_minutes() {
    let seed = variable("SEED").unwrap_or_else(|| fastrand::u64(..1_000_000));
    let lasts = Duration::from_secs(60 * variable("MINUTES").unwrap_or(5));
    let outcome = run(Plan { lasts, seed, kinds: &Kind::ALL, mistakes: &[] }).await;
    assert!(outcome.broken.is_empty(), "seed {seed}: {:#?}", outcome.broken);
}
