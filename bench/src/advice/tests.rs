use super::findings;
use crate::checking::checker::Verdict;
use crate::measurements::drain::Drain;
use crate::postgres::load::Shape;
use crate::processes::metrics::Batches;
use crate::processes::usage::Usage;
use crate::report::{Limits, Machine, MeasuredDrain, Report, Settings};
use std::collections::BTreeMap;

/// A report of two cores of which the three parties use these shares, a drain with large batches, and servers nearby.
fn report(cores: [f64; 3]) -> Report {
    let usage = |(party, cores): (&str, f64)| Usage {
        party: party.to_owned(),
        cpu_seconds: 1.0,
        cpu_us_per_row: Some(cores * 10.0),
        cores,
        memory_peak_bytes: 1,
    };
    let drain = Drain {
        rows: 200_000,
        seconds: 2.0,
        rows_per_second: 100_000.0,
        first_third_rows_per_second: 100_000.0,
        last_third_rows_per_second: 100_000.0,
        machine_busy: Some(cores.iter().sum::<f64>() / 2.0),
        usage: ["relay", "postgres", "kafka"].into_iter().zip(cores).map(usage).collect(),
    };
    let batches = Batches {
        count: 40,
        rows: 5_000.0,
        seconds: 0.1,
        publish_seconds: 0.02,
        connections: 4,
        failures: 0,
    };
    Report {
        format: 1,
        version: "0",
        machine: Machine {
            cores: 2,
            postgres_version: "18".to_owned(),
            postgres_settings: BTreeMap::from([("full_page_writes".to_owned(), "on".to_owned())]),
            max_wal_bytes: 16 << 30,
            postgres_round_trip_ms: 0.1,
            kafka_round_trip_ms: 0.3,
            postgres_not_visible: None,
            kafka_not_visible: None,
        },
        settings: Settings { on_sent: "mark", workers: 3, batch_size: 5_000, batch_bytes: 8 << 20 },
        shape: Shape { rows: 200_000, keys: 1_000, payload_bytes: 246, topics: 1, hot_share: 0.0 },
        partitions: 12,
        idle: None,
        limits: Limits::default(),
        drains: vec![MeasuredDrain {
            load: "plain",
            on_sent: "mark",
            drain,
            batches,
            verdict: Verdict::default(),
            limit: None,
        }],
        flows: Vec::new(),
        steady: Vec::new(),
        findings: Vec::new(),
    }
}

/// The codes of the findings after this change.
fn found(cores: [f64; 3], change: impl FnOnce(&mut Report)) -> Vec<&'static str> {
    let mut report = report(cores);
    change(&mut report);
    findings(&report).iter().map(|finding| finding.what).collect()
}

#[test]
fn on_a_saturated_machine_the_party_with_the_most_cpu_is_named() {
    assert_eq!(found([0.3, 1.3, 0.2], |_| ()), ["cpu-postgres"]);
    assert_eq!(found([1.0, 0.5, 0.4], |_| ()), ["cpu-relay"]);
    assert_eq!(found([0.3, 0.3, 1.2], |_| ()), ["cpu-kafka"]);
}

#[test]
fn advice_to_delete_states_how_much_faster_it_was() {
    let mut report = report([0.3, 1.3, 0.2]);
    let mut deleted = report.drains[0].clone();
    deleted.on_sent = "delete";
    deleted.drain.rows_per_second = 170_000.0;
    report.drains.push(deleted);
    let change = &findings(&report)[0].change;
    assert!(change.contains("on_sent = \"delete\" was 1.7 times as fast here"), "{change}");
}

#[test]
fn other_programs_are_named_first() {
    assert_eq!(
        found([0.3, 0.5, 0.2], |report| report.drains[0].drain.machine_busy = Some(0.97)),
        ["machine-busy"]
    );
}

#[test]
fn relay_that_uses_a_whole_core_needs_a_second_relay() {
    assert_eq!(found([1.0, 0.4, 0.1], |report| report.machine.cores = 16), ["relay-thread"]);
}

#[test]
fn batches_limited_by_bytes_need_more_bytes() {
    let small = |report: &mut Report| {
        report.shape.payload_bytes = 10_000;
        report.drains[0].batches.rows = 820.0;
    };
    assert_eq!(found([0.2, 0.3, 0.1], small), ["byte-budget"]);
}

#[test]
fn batch_times_and_round_trips_show_what_the_relay_waits_for() {
    let far_kafka = |report: &mut Report| {
        report.machine.kafka_round_trip_ms = 10.0;
        report.drains[0].batches.publish_seconds = 0.07;
    };
    assert_eq!(found([0.2, 0.3, 0.1], far_kafka), ["kafka-round-trips"]);
    assert_eq!(found([0.2, 0.3, 0.1], |report| report.drains[0].batches.publish_seconds = 0.07), ["kafka"]);
    let far_postgres = |report: &mut Report| report.machine.postgres_round_trip_ms = 5.0;
    assert_eq!(found([0.2, 0.3, 0.1], far_postgres), ["postgres-round-trips"]);
    assert_eq!(found([0.2, 0.3, 0.1], |_| ()), ["postgres"]);
}

#[test]
fn invisible_cpu_time_is_not_guessed() {
    let hidden = |report: &mut Report| {
        report.machine.postgres_not_visible = Some("not on this machine".to_owned());
        report.drains[0].drain.usage.truncate(1);
    };
    assert_eq!(found([0.3, 1.3, 0.2], hidden), ["postgres"]);
}

#[test]
fn checkpoints_failures_and_duplicates_are_additional_findings() {
    let change = |report: &mut Report| {
        report.machine.max_wal_bytes = 256 << 20;
        report.drains[0].batches.failures = 1;
        report.drains[0].verdict.duplicates = 7;
    };
    assert_eq!(found([0.3, 1.3, 0.2], change), ["cpu-postgres", "checkpoints", "failures", "duplicates"]);
}
