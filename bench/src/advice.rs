//! Derives from the measurements what limits the throughput, and which setting to change.

use crate::report::{MeasuredDrain, Report};
use serde::Serialize;

/// At this share of all cores, the machine itself is the limit.
const CPU_FULL: f64 = 0.8;
/// At this share of all cores, used by any process, no CPU is left.
const MACHINE_FULL: f64 = 0.9;
/// A relay makes its decisions on one thread, so one core is its limit.
const ONE_CORE_FULL: f64 = 0.9;
/// Batches smaller than this share of `batch_size` were limited by something else.
const BATCH_FULL: f64 = 0.9;
/// The memory of a row in addition to its payload, in bytes: key, type, id and headers.
const ROW_OVERHEAD: u64 = 150;
/// The round trips of a large batch to PostgreSQL: BEGIN, lock with its settings, read, settle and COMMIT. Each slice
/// adds one.
const POSTGRES_ROUND_TRIPS: f64 = 5.0;
const SLICE_ROWS: f64 = 1_024.0;
/// The round trips of a batch to Kafka: a few consecutive requests to each partition.
const KAFKA_ROUND_TRIPS: f64 = 3.0;
/// At this share of a batch's time, network latency is worth a change.
const WAY_MATTERS: f64 = 0.3;
/// Below this, a large drain has checkpoints in its middle. After each of them, whole pages are logged again.
const WAL_BYTES_GOOD: u64 = 4 << 30;
/// The minimum of WAL for a row that is inserted and then marked or deleted.
const WAL_BYTES_A_ROW: u64 = 1_000;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// A code: `cpu-postgres`, `cpu-relay`, `cpu-kafka`, `machine-busy`, `relay-thread`, `byte-budget`,
    /// `kafka-round-trips`, `kafka`, `postgres-round-trips`, `postgres`, `checkpoints`, `writers-late`, `lag`,
    /// `duplicates`, `failures`.
    pub what: &'static str,
    pub seen: String,
    pub change: String,
}

fn finding(what: &'static str, seen: String, change: impl Into<String>) -> Finding {
    Finding { what, seen, change: change.into() }
}

/// All findings. The first one limits the drain.
pub fn findings(report: &Report) -> Vec<Finding> {
    let configured =
        |drain: &&MeasuredDrain| drain.load == "plain" && drain.on_sent == report.settings.on_sent;
    let drain = report.drains.iter().find(configured).or(report.drains.first());
    let mut findings: Vec<Finding> = drain.map(|drain| limiting(report, drain)).into_iter().collect();
    findings.extend(checkpoints(report));
    findings.extend(lags(report));
    findings.extend(late_writers(report));
    findings.extend(faults(report));
    findings
}

fn limiting(report: &Report, drain: &MeasuredDrain) -> Finding {
    let cores = report.machine.cores as f64;
    let used: f64 = drain.drain.usage.iter().map(|usage| usage.cores).sum();
    let relay = drain.drain.usage.first().map_or(0.0, |usage| usage.cores);
    if report.has_all_parties() && used / cores >= CPU_FULL {
        return cpu(report, drain, used / cores);
    }
    let busy = drain.drain.machine_busy.unwrap_or(0.0);
    if report.has_all_parties() && busy >= MACHINE_FULL {
        let seen = format!(
            "other programs: {:.0}% of all cores are in use, but only {:.0}% by relay, PostgreSQL and Kafka",
            busy * 100.0,
            used / cores * 100.0
        );
        return finding("machine-busy", seen, "repeat the measurement on an otherwise idle machine");
    }
    if relay >= ONE_CORE_FULL {
        let seen = format!("the relay uses {relay:.1} cores, and makes its decisions on one thread");
        let change = "run a second relay on the same table: relays share the lanes automatically";
        return finding("relay-thread", seen, change);
    }
    byte_budget(report, drain).unwrap_or_else(|| waiting(report, drain))
}

fn cpu(report: &Report, drain: &MeasuredDrain, share: f64) -> Finding {
    let usage = &drain.drain.usage;
    let most = usage.iter().max_by(|a, b| a.cores.total_cmp(&b.cores));
    let (party, us) = most.map_or(("", 0.0), |most| (&*most.party, most.cpu_us_per_row.unwrap_or(0.0)));
    let total: f64 = usage.iter().map(|usage| usage.cores).sum();
    let most = most.map_or(0.0, |most| most.cores / total);
    let seen = format!(
        "CPU: {:.0}% of the {} cores are in use, {:.0}% of that by {party}, {us:.1} µs per row",
        share * 100.0,
        report.machine.cores,
        most * 100.0
    );
    match party {
        "postgres" if drain.on_sent == "mark" => finding("cpu-postgres", seen, deletes(report, drain)),
        "postgres" => finding(
            "cpu-postgres",
            seen,
            "give PostgreSQL more or faster cores; drop additional indexes on the outbox, because every row updates them twice",
        ),
        "kafka" => finding(
            "cpu-kafka",
            seen,
            "run the broker on separate cores; use fewer partitions, or a linger.ms of a few milliseconds in \
             [kafka.properties], for larger requests",
        ),
        _ => finding(
            "cpu-relay",
            seen,
            "run the relay on separate cores; \"compression.type\" = \"none\" in [kafka.properties] saves CPU for \
             compression, but needs more network and disk",
        ),
    }
}

fn deletes(report: &Report, drain: &MeasuredDrain) -> String {
    let deleted = report.drains.iter().find(|other| other.load == drain.load && other.on_sent == "delete");
    let faster = deleted.map(|deleted| deleted.drain.rows_per_second / drain.drain.rows_per_second);
    match faster {
        Some(faster) if faster > 1.05 => format!(
            "[outbox] on_sent = \"delete\" was {faster:.1} times as fast here, but keeps no history; or give \
             PostgreSQL more cores"
        ),
        Some(_) => "give PostgreSQL more or faster cores".to_owned(),
        None => "[outbox] on_sent = \"delete\" costs PostgreSQL less, but keeps no history; or give PostgreSQL more cores"
            .to_owned(),
    }
}

fn byte_budget(report: &Report, drain: &MeasuredDrain) -> Option<Finding> {
    let (settings, rows) = (&report.settings, drain.batches.rows);
    let fit = settings.batch_bytes / (report.shape.payload_bytes as u64 + ROW_OVERHEAD);
    let cut = rows < BATCH_FULL * settings.batch_size as f64;
    (cut && fit < settings.batch_size as u64).then(|| {
        let seen = format!(
            "batches have {rows:.0} rows on average: only about {fit} of these rows fit into batch_bytes, not the {} of batch_size",
            settings.batch_size
        );
        let change = "raise [relay] batch_bytes; the relay needs about workers times this much memory";
        finding("byte-budget", seen, change)
    })
}

/// No CPU is exhausted, so the relay waits for something.
fn waiting(report: &Report, drain: &MeasuredDrain) -> Finding {
    let (machine, batches) = (&report.machine, &drain.batches);
    let batch_ms = (batches.seconds * 1e3).max(f64::MIN_POSITIVE);
    let publish_ms = batches.publish_seconds * 1e3;
    let of_batch = publish_ms / batch_ms;
    let workers =
        format!("raise [relay] workers, now {}, for more concurrent batches", report.settings.workers);
    let seen = |share: f64, server: &str, round_trip_ms: f64| {
        format!(
            "a batch takes {batch_ms:.0} ms, {:.0}% of it waiting for {server}, whose round trip is {round_trip_ms:.1} ms",
            share * 100.0
        )
    };
    if of_batch >= 0.5 {
        let way = KAFKA_ROUND_TRIPS * machine.kafka_round_trip_ms;
        let seen = seen(of_batch, "Kafka", machine.kafka_round_trip_ms);
        if way / publish_ms.max(f64::MIN_POSITIVE) >= WAY_MATTERS {
            return finding("kafka-round-trips", seen, workers);
        }
        let change = format!(
            "check the brokers: disks, replication, min.insync.replicas; if they are idle, {workers}"
        );
        return finding("kafka", seen, change);
    }
    let way = (POSTGRES_ROUND_TRIPS + batches.rows / SLICE_ROWS) * machine.postgres_round_trip_ms;
    let seen = seen(1.0 - of_batch, "PostgreSQL", machine.postgres_round_trip_ms);
    if way / batch_ms >= WAY_MATTERS {
        let change = format!("{workers}; or raise batch_size, now {}", report.settings.batch_size);
        return finding("postgres-round-trips", seen, change);
    }
    let change = format!(
        "check what PostgreSQL waits for (pg_stat_activity), mostly its disk; with larger shared_buffers and \
         max_wal_size, it writes less; if it is idle, {workers}"
    );
    finding("postgres", seen, change)
}

fn checkpoints(report: &Report) -> Option<Finding> {
    let machine = &report.machine;
    let written = report.shape.rows * (WAL_BYTES_A_ROW + report.shape.payload_bytes as u64);
    let full_pages = machine.postgres_settings.get("full_page_writes").is_none_or(|setting| setting != "off");
    // The next checkpoint begins when half of max_wal_size is written.
    let often = machine.max_wal_bytes < WAL_BYTES_GOOD && written > machine.max_wal_bytes / 2;
    (often && full_pages && !report.drains.is_empty()).then(|| {
        let seen = format!(
            "max_wal_size of PostgreSQL is {}: checkpoints run during these drains, and after each of them whole pages are \
             logged again",
            machine.postgres_settings.get("max_wal_size").map_or("small", String::as_str)
        );
        let change = "raise max_wal_size of PostgreSQL to several GB, if the disk has room; wal_compression = lz4 makes \
                      whole pages smaller";
        finding("checkpoints", seen, change)
    })
}

fn lags(report: &Report) -> Option<Finding> {
    let flows = report.flows.iter().map(|measured| &measured.flow);
    let lags = flows.filter(|flow| {
        // More rows than are normally in flight, and increasing.
        let tolerable = (flow.written_rows_per_second / 2.0) as u64;
        flow.lag_rows_end > tolerable && flow.lag_rows_end as f64 > 1.5 * flow.lag_rows_half as f64
    });
    let worst = lags.max_by_key(|flow| flow.lag_rows_end)?;
    let seen = format!(
        "with writers at full speed ({} rows per transaction), the relay falls behind: {} rows when they ended",
        worst.rows_per_transaction, worst.lag_rows_end
    );
    let change = "writers that never pause saturate any machine; make sure that the relay catches up when they pause, and \
                  check the rate of the drain";
    Some(finding("lag", seen, change))
}

fn late_writers(report: &Report) -> Option<Finding> {
    let late = report.steady.iter().find(|steady| {
        let committed = steady.committed_rows_per_second / steady.rows_per_second as f64;
        committed < 0.98 || steady.writer_late.p99_ms > 20.0
    })?;
    let seen = format!(
        "at {} rows/s, the writers of this measurement could not keep their schedule: {:.0} rows/s, with 1% of the \
         transactions more than {:.0} ms late",
        late.rows_per_second, late.committed_rows_per_second, late.writer_late.p99_ms
    );
    let change = "this latency is that of a saturated machine; measure from another machine";
    Some(finding("writers-late", seen, change))
}

fn faults(report: &Report) -> Vec<Finding> {
    let failures: u64 = report.drains.iter().map(|drain| drain.batches.failures).sum();
    let duplicates: u64 = report.verdicts().map(|verdict| verdict.duplicates).sum();
    let faults = [
        ("failures", failures, "batches or producers failed during the drains and were retried"),
        ("duplicates", duplicates, "events arrived twice with the same event_id, because something failed"),
    ];
    let change = "check the servers' logs for the time of the measurement";
    let faults = faults.into_iter().filter(|(_, number, _)| *number > 0);
    faults.map(|(what, number, seen)| finding(what, format!("{number} {seen}"), change)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checker::Verdict;
    use crate::drain::Drain;
    use crate::load::Shape;
    use crate::relay::Batches;
    use crate::report::{Machine, Settings};
    use crate::usage::Usage;
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
            rows_per_second: 100_000.0,
            machine_busy: Some(cores.iter().sum::<f64>() / 2.0),
            usage: ["relay", "postgres", "kafka"].into_iter().zip(cores).map(usage).collect(),
            ..Drain::default()
        };
        let batches = Batches { rows: 5_000.0, seconds: 0.1, publish_seconds: 0.02, ..Batches::default() };
        Report {
            machine: Machine {
                cores: 2,
                postgres_settings: BTreeMap::from([("full_page_writes".to_owned(), "on".to_owned())]),
                max_wal_bytes: 16 << 30,
                postgres_round_trip_ms: 0.1,
                kafka_round_trip_ms: 0.3,
                ..Machine::default()
            },
            settings: Settings { on_sent: "mark", workers: 3, batch_size: 5_000, batch_bytes: 8 << 20 },
            shape: Shape { rows: 200_000, keys: 1_000, payload_bytes: 246, topics: 1, hot_share: 0.0 },
            drains: vec![MeasuredDrain {
                load: "plain",
                on_sent: "mark",
                drain,
                batches,
                verdict: Verdict::default(),
                limit: None,
            }],
            ..Report::default()
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
        assert_eq!(
            found([0.2, 0.3, 0.1], |report| report.drains[0].batches.publish_seconds = 0.07),
            ["kafka"]
        );
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
}
