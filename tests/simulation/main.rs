//! The simulator: the relay's own code, unchanged, in a seeded world of a modelled Postgres and Kafka, on a paused
//! clock. A failure prints the seed and the history; the same seed repeats it exactly.
//!
//! `SEED=… SCHEDULES=… cargo test --test simulation` looks elsewhere, or longer.

#![allow(clippy::unwrap_used)]

mod kafka;
mod postgres;
mod run;
mod world;

use run::{Outcome, Plan, run};
use world::{Faults, Sabotage};

/// The template of the simulated relays is the aggregate type itself.
fn topic_of(event: &postgres::SimEvent) -> String {
    event.aggregate_type.clone()
}

/// Nothing fails.
const CALM: Plan = Plan {
    relays: 2,
    writers: 6,
    events_per_writer: 12,
    keys: 7,
    faults: Faults {
        postgres_breaks: 0,
        commit_answer_lost: 0,
        request_refused: 0,
        request_answer_lost: 0,
        row_locked: 0,
    },
    disasters: 0,
    poison: 0,
    late_topic: false,
    sabotage: None,
};

/// Every kind of fault, at once and often.
const STORM: Plan = Plan {
    faults: Faults {
        postgres_breaks: 15,
        commit_answer_lost: 30,
        request_refused: 100,
        request_answer_lost: 50,
        row_locked: 30,
    },
    disasters: 6,
    poison: 20,
    late_topic: true,
    ..CALM
};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs so many schedules, and sums up what came of them.
fn explore(plan: &Plan, schedules: u64) -> Outcome {
    let (first, schedules) = (number("SEED", 1), number("SCHEDULES", schedules));
    let mut sum = Outcome::default();
    for seed in first..first + schedules {
        match run(seed, plan) {
            Err(broken) => panic!("{broken}"),
            Ok(outcome) => {
                sum.written += outcome.written;
                sum.duplicates += outcome.duplicates;
                sum.dead += outcome.dead;
            }
        }
    }
    println!("{schedules} schedules: {sum:?}");
    sum
}

#[test]
fn without_a_fault_every_event_arrives_once_and_in_order() {
    let outcome = explore(&CALM, 60);
    assert_eq!((outcome.duplicates, outcome.dead), (0, 0), "duplicates or dead letters without a fault");
}

#[test]
fn a_topic_that_comes_late_costs_no_duplicate_and_no_order() {
    let outcome = explore(&Plan { late_topic: true, events_per_writer: 50, ..CALM }, 20);
    assert_eq!((outcome.duplicates, outcome.dead), (0, 0));
}

#[test]
fn whatever_fails_nothing_is_lost_and_first_occurrences_stay_in_order() {
    explore(&STORM, 150);
}

/// A world that breaks a rule must be caught within so many schedules; else the simulator sees nothing. Duplicates
/// without a fault count as caught, too.
fn must_be_caught(rule: Sabotage, schedules: u64) {
    let calm = Plan { sabotage: Some(rule), late_topic: true, events_per_writer: 50, ..CALM };
    let storm = Plan { sabotage: Some(rule), ..STORM };
    let is_seen = |seed: &u64| {
        run(*seed, &storm).is_err() || run(*seed, &calm).map_or(true, |outcome| outcome.duplicates > 0)
    };
    let caught = (1..=schedules).find(is_seen);
    let seed = caught.unwrap_or_else(|| panic!("{rule:?} was not caught in {schedules} schedules"));
    println!("{rule:?} was caught by schedule {seed}");
}

#[test]
fn lanes_without_a_lock_are_caught() {
    must_be_caught(Sabotage::NoLaneLock, 100);
}

#[test]
fn a_snapshot_older_than_the_lane_lock_is_caught() {
    must_be_caught(Sabotage::SnapshotOlderThanLock, 100);
}

#[test]
fn skipping_locked_rows_is_caught() {
    must_be_caught(Sabotage::RowsSkipLocked, 100);
}

#[test]
fn marks_without_a_fence_are_caught() {
    must_be_caught(Sabotage::BlindFence, 100);
}

#[test]
fn marks_that_outlive_a_hold_are_caught() {
    must_be_caught(Sabotage::HoldsWithoutVersion, 100);
}

#[test]
fn a_producer_that_leaves_gaps_is_caught() {
    must_be_caught(Sabotage::GapsAfterRefusal, 100);
}

#[test]
fn counting_purged_rows_as_sent_is_caught() {
    must_be_caught(Sabotage::PurgedCountsAsSent, 100);
}
