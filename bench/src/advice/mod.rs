//! What limits the throughput, out of what was measured, and which setting to change.

use super::report::{MeasuredDrain, Report};
use serde::Serialize;

/// From this share of all cores on, the machine itself is the limit.
const CPU_FULL: f64 = 0.8;
/// From this share of all cores on, in use by whomever, there is nothing left to be used.
const MACHINE_FULL: f64 = 0.9;
/// A relay decides on one thread: near a whole core, that is the limit.
const ONE_CORE_FULL: f64 = 0.9;
/// Batches of less than this share of `batch_size` were cut off by something else.
const BATCH_FULL: f64 = 0.9;
/// What a row has beside its payload in memory, in bytes: key, type, id and what describes them.
const ROW_OVERHEAD: u64 = 150;
/// Round trips of a large batch to Postgres: BEGIN, lock with its settings, read, settle, COMMIT; and one for each slice.
const POSTGRES_ROUND_TRIPS: f64 = 5.0;
const SLICE_ROWS: f64 = 1_024.0;
/// Round trips of a batch to Kafka: a few requests to each partition, one after the other.
const KAFKA_ROUND_TRIPS: f64 = 3.0;
/// From this share of a batch's time on, the way there and back is worth a change.
const WAY_MATTERS: f64 = 0.3;
/// Below this, a drain of some size has checkpoints in its middle, after each of which whole pages are logged again.
const WAL_BYTES_GOOD: u64 = 4 << 30;
/// WAL that is written for a row that is inserted and marked, or inserted and deleted, at least.
const WAL_BYTES_A_ROW: u64 = 1_000;

/// One thing that limits, or that is not as it should be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// A word: `cpu-postgres`, `cpu-relay`, `cpu-kafka`, `machine-busy`, `relay-thread`, `byte-budget`, `kafka-round-trips`, `kafka`,
    /// `postgres-round-trips`, `postgres`, `checkpoints`, `writers-late`, `lag`, `duplicates`, `failures`.
    pub what: &'static str,
    /// What was seen.
    pub seen: String,
    /// What to change.
    pub change: String,
}

/// Everything that is to be said, what limits the drain first.
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

/// What keeps this drain from being faster.
fn limiting(report: &Report, drain: &MeasuredDrain) -> Finding {
    let cores = report.machine.cores as f64;
    let used: f64 = drain.drain.usage.iter().map(|usage| usage.cores).sum();
    let relay = drain.drain.usage.first().map_or(0.0, |usage| usage.cores);
    if report.has_all_parties() && used / cores >= CPU_FULL {
        return cpu(report, drain, used / cores);
    }
    if let Some(busy) =
        drain.drain.machine_busy.filter(|busy| report.has_all_parties() && *busy >= MACHINE_FULL)
    {
        return Finding {
            what: "machine-busy",
            seen: format!(
                "other programs: {:.0} % of all cores are in use, but only {:.0} % by relay, Postgres and Kafka",
                busy * 100.0,
                used / cores * 100.0
            ),
            change: "measure when the machine has nothing else to do".to_owned(),
        };
    }
    if relay >= ONE_CORE_FULL {
        return Finding {
            what: "relay-thread",
            seen: format!("the relay uses {relay:.1} cores; what it decides, it decides on one thread"),
            change: "run a second relay on the same table: they share the lanes by themselves".to_owned(),
        };
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
        "CPU: {:.0} % of the {} cores are in use, {:.0} % of that by {party}, {us:.1} µs a row",
        share * 100.0,
        report.machine.cores,
        most * 100.0
    );
    let (what, change) = match party {
        "postgres" if drain.on_sent == "mark" => ("cpu-postgres", deletes(report, drain)),
        "postgres" => (
            "cpu-postgres",
            "more or faster cores for Postgres; an index of your own on the outbox costs each row twice".to_owned(),
        ),
        "kafka" => (
            "cpu-kafka",
            "give the broker cores of its own; fewer partitions, or a linger.ms of a few milliseconds in \
             [kafka.properties], make its requests larger"
                .to_owned(),
        ),
        _ => (
            "cpu-relay",
            "give the relay cores of its own; \"compression.type\" = \"none\" in [kafka.properties] spares it the \
             compression, and costs network and disk"
                .to_owned(),
        ),
    };
    Finding { what, seen, change }
}

fn deletes(report: &Report, drain: &MeasuredDrain) -> String {
    let deleted = report.drains.iter().find(|other| other.load == drain.load && other.on_sent == "delete");
    let faster = deleted.map(|deleted| deleted.drain.rows_per_second / drain.drain.rows_per_second);
    match faster {
        Some(faster) if faster > 1.05 => format!(
            "[outbox] on_sent = \"delete\" was {faster:.1} times as fast here, and leaves no history; or more cores for \
             Postgres"
        ),
        Some(_) => "more or faster cores for Postgres".to_owned(),
        None => "[outbox] on_sent = \"delete\" costs Postgres less, and leaves no history; or more cores for Postgres"
            .to_owned(),
    }
}

fn byte_budget(report: &Report, drain: &MeasuredDrain) -> Option<Finding> {
    let settings = &report.settings;
    let row_bytes = report.shape.payload_bytes as u64 + ROW_OVERHEAD;
    let fit = settings.batch_bytes / row_bytes;
    let cut = drain.batches.rows < BATCH_FULL * settings.batch_size as f64;
    (cut && fit < settings.batch_size as u64).then(|| Finding {
        what: "byte-budget",
        seen: format!(
            "batches have {:.0} rows on average: about {fit} of these rows fit into batch_bytes, not the {} of batch_size",
            drain.batches.rows, settings.batch_size
        ),
        change: "raise [relay] batch_bytes; memory is about workers times this".to_owned(),
    })
}

/// No CPU is short: something is waited for.
fn waiting(report: &Report, drain: &MeasuredDrain) -> Finding {
    let (machine, batches) = (&report.machine, &drain.batches);
    let batch_ms = (batches.seconds * 1e3).max(f64::MIN_POSITIVE);
    let publish_ms = batches.publish_seconds * 1e3;
    let of_batch = publish_ms / batch_ms;
    let workers =
        format!("raise [relay] workers, now {}: more batches are under way at once", report.settings.workers);
    if of_batch >= 0.5 {
        let way = KAFKA_ROUND_TRIPS * machine.kafka_round_trip_ms;
        let seen = format!(
            "a batch takes {batch_ms:.0} ms, {:.0} % of that until Kafka has acknowledged it, which is {:.1} ms away",
            of_batch * 100.0,
            machine.kafka_round_trip_ms
        );
        return if way / publish_ms.max(f64::MIN_POSITIVE) >= WAY_MATTERS {
            Finding { what: "kafka-round-trips", seen, change: workers }
        } else {
            let change = format!(
                "look at the brokers: their disks, their replication, min.insync.replicas; if they are idle, {workers}"
            );
            Finding { what: "kafka", seen, change }
        };
    }
    let way = (POSTGRES_ROUND_TRIPS + batches.rows / SLICE_ROWS) * machine.postgres_round_trip_ms;
    let seen = format!(
        "a batch takes {batch_ms:.0} ms, {:.0} % of that for Postgres, which is {:.1} ms away",
        (1.0 - of_batch) * 100.0,
        machine.postgres_round_trip_ms
    );
    if way / batch_ms >= WAY_MATTERS {
        let change = format!("{workers}; or raise batch_size, now {}", report.settings.batch_size);
        return Finding { what: "postgres-round-trips", seen, change };
    }
    let change = format!(
        "look at what Postgres waits for (pg_stat_activity): mostly its disk; larger shared_buffers and max_wal_size write \
         less; if it is idle, {workers}"
    );
    Finding { what: "postgres", seen, change }
}

fn checkpoints(report: &Report) -> Option<Finding> {
    let machine = &report.machine;
    let written = report.shape.rows * (WAL_BYTES_A_ROW + report.shape.payload_bytes as u64);
    let full_pages = machine.postgres_settings.get("full_page_writes").is_none_or(|setting| setting != "off");
    // Half of it is when the next checkpoint begins.
    let often = machine.max_wal_bytes < WAL_BYTES_GOOD && written > machine.max_wal_bytes / 2;
    (often && full_pages && !report.drains.is_empty()).then(|| Finding {
        what: "checkpoints",
        seen: format!(
            "max_wal_size of Postgres is {}: these drains have checkpoints in their middle, and after each of them pages are \
             logged whole again",
            machine.postgres_settings.get("max_wal_size").map_or("small", String::as_str)
        ),
        change: "raise max_wal_size of Postgres to some GB, if the disk has the room; wal_compression = lz4 makes whole \
                 pages smaller"
            .to_owned(),
    })
}

fn lags(report: &Report) -> Option<Finding> {
    let flows = report.flows.iter().map(|measured| &measured.flow);
    let lags = flows.filter(|flow| {
        // More than what is always on its way, and growing.
        let tolerable = (flow.written_rows_per_second / 2.0) as u64;
        flow.lag_rows_end > tolerable && flow.lag_rows_end as f64 > 1.5 * flow.lag_rows_half as f64
    });
    let worst = lags.max_by_key(|flow| flow.lag_rows_end)?;
    Some(Finding {
        what: "lag",
        seen: format!(
            "with writers at full speed ({} rows per transaction), the relay falls behind: {} rows when they ended",
            worst.rows_per_transaction, worst.lag_rows_end
        ),
        change: "writers that never pause fill any machine; what counts is that the relay catches up when they do, \
                 and how fast the drain is"
            .to_owned(),
    })
}

fn late_writers(report: &Report) -> Option<Finding> {
    let late = report.steady.iter().find(|steady| {
        let committed = steady.committed_rows_per_second / steady.rows_per_second as f64;
        committed < 0.98 || steady.writer_late.p99_ms > 20.0
    })?;
    Some(Finding {
        what: "writers-late",
        seen: format!(
            "at {} rows/s the writers of this measurement could not keep their schedule: {:.0} rows/s, 1 % of the \
             transactions more than {:.0} ms late",
            late.rows_per_second, late.committed_rows_per_second, late.writer_late.p99_ms
        ),
        change: "take the latency at this rate as that of a machine that is full; measure from another one"
            .to_owned(),
    })
}

fn faults(report: &Report) -> Vec<Finding> {
    let mut findings = Vec::new();
    let failures: u64 = report.drains.iter().map(|drain| drain.batches.failures).sum();
    if failures > 0 {
        findings.push(Finding {
            what: "failures",
            seen: format!("{failures} batches or producers failed in the drains and were tried again"),
            change: "look at the servers' logs for the time of the measurement".to_owned(),
        });
    }
    let duplicates: u64 = report.verdicts().map(|verdict| verdict.duplicates).sum();
    if duplicates > 0 {
        findings.push(Finding {
            what: "duplicates",
            seen: format!(
                "{duplicates} events arrived twice, each with its own event_id: something failed on the way"
            ),
            change: "look at the servers' logs for the time of the measurement".to_owned(),
        });
    }
    findings
}

#[cfg(test)]
mod tests;
