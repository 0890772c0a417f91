//! Flows: order, duplicates, silent partitions, and their end.

use super::explore::{each, explore};
use super::plan::{Disaster, Plan};
use super::sabotages;
use std::time::Duration;

/// Steady traffic of a few keys, and batches that leave room for flows.
fn flows(seed: u64, plan: Plan) -> Plan {
    let window = Duration::from_millis(100);
    let gaps_max = if seed.is_multiple_of(4) { 3 } else { 1_000 };
    let traffic = Plan { transactions: 60, writing: Duration::from_secs(2), ..plan };
    Plan {
        flow_window: window,
        gaps_max,
        batch_rows: 40,
        batch_bytes: 9_000,
        long_transaction: 10,
        prepares: 20,
        ..traffic
    }
}

#[test]
fn flows_lose_and_reorder_nothing_whatever_fails() {
    let outcome = explore(|seed| flows(seed, Plan::storm(seed)), 2_000);
    assert!(outcome.flowed * 100 > outcome.written, "few rows were read by flows: {outcome:?}");
    assert!(outcome.recorded * 200 > outcome.written, "flows recorded few rows: {outcome:?}");
}

#[test]
fn flows_without_a_fault_deliver_every_event_once() {
    let outcome = explore(|seed| flows(seed, Plan::calm(seed)), 300);
    assert_eq!((outcome.duplicates, outcome.dead), (0, 0), "duplicates or dead letters without a fault");
    assert!(outcome.flowed * 10 > outcome.written, "few rows were read by flows: {outcome:?}");
}

/// The traffic in which the sabotages of flows are caught. A few schedules catch each of them, but the sound relay is run many times.
#[test]
fn flows_among_long_transactions_lose_and_reorder_nothing() {
    let plan = |seed| match seed % 5 {
        0 => sabotages::flows(seed),
        1 => Plan { long_transaction: 600, ..sabotages::slow_flows(seed) },
        2 => sabotages::flows_and_operators(seed),
        3 => sabotages::flows_without_gaps(seed),
        _ => Plan { relays: 3, lanes: 3, keys: 5, ..sabotages::flows(seed) },
    };
    let outcome = explore(plan, 7_000);
    assert!(outcome.flowed * 20 > outcome.written, "few rows were read by flows: {outcome:?}");
}

/// A flow usually holds all lanes, and the silent partition is recognized only after some seconds.
#[test]
fn a_partition_that_falls_silent_during_a_flow_delays_no_other_topic() {
    falls_silent(with_a_stuck_partition, 100);
}

/// While rows are rare, a worker has only their lanes, and the last idle one takes all others. In some schedules, both workers send a row
/// to the silent partition, a few seconds apart. The second one must not wait once the first one has held the topic.
#[test]
fn a_partition_that_falls_silent_while_rows_are_rare_delays_no_other_topic() {
    falls_silent(|seed| Plan { flow_gap: Duration::from_millis(30), ..with_a_stuck_partition(seed) }, 400);
}

fn falls_silent(plan: fn(u64) -> Plan, schedules: u64) {
    // Once the topic is held, the relay waits two seconds for reports that may still arrive.
    let outcome =
        each(plan, schedules, "slowest below 3 s", |_, outcome| outcome.slowest < Duration::from_secs(3));
    assert!(outcome.stuck > 0, "no topic was held: {outcome:?}");
}

fn with_a_stuck_partition(seed: u64) -> Plan {
    Plan {
        relays: 1,
        keys: 6,
        topics: 3,
        batch_rows: 1_000,
        batch_bytes: 200_000,
        gaps_max: 1_000,
        writing: Duration::from_secs(30),
        rolls_back: 0,
        long_transaction: 0,
        prepares: 0,
        // Flows begin once the fence has passed the first ids.
        calm_at_first: Duration::from_secs(5),
        disasters: 1,
        kinds: &[Disaster::PartitionStuck],
        ..flows(seed, Plan::calm(seed))
    }
}

/// Each acknowledgement is overdue, so the flow might continue forever.
#[test]
fn a_flow_ends_although_every_acknowledgement_is_slow() {
    let plan = |seed| Plan {
        relays: 1,
        batch_rows: 1_000,
        batch_bytes: 200_000,
        gaps_max: 1_000,
        topics: 1,
        transactions: 100,
        writing: Duration::from_secs(40),
        brokers_slow: Duration::from_millis(250),
        ..flows(seed, Plan::calm(seed))
    };
    let outcome =
        each(plan, 50, "settled_late below 3 s", |_, outcome| outcome.settled_late < Duration::from_secs(3));
    assert_eq!((outcome.duplicates, outcome.dead), (0, 0), "duplicates or dead letters without a fault");
    assert!(outcome.flowed > 0, "{outcome:?}");
}

/// The lanes of a relay without Kafka are free after two thirds of `takeover_timeout`, or once the lookup of a topic has failed,
/// and the time for late reports. They once belonged to it for longer than `publish_timeout`.
#[test]
fn a_relay_that_loses_kafka_gives_its_lanes_to_another_one() {
    let plan = |seed| Plan {
        relays: 2,
        workers: 1,
        keys: 6,
        batch_rows: 1_000,
        batch_bytes: 200_000,
        writing: Duration::from_secs(30),
        rolls_back: 0,
        long_transaction: 0,
        prepares: 0,
        calm_at_first: Duration::from_secs(5),
        disasters: 1,
        kinds: &[Disaster::CutFromKafka],
        ..flows(seed, Plan::calm(seed))
    };
    each(plan, 100, "slowest below 8 s", |_, outcome| outcome.slowest < Duration::from_secs(8));
}
