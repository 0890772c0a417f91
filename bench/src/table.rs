//! The report as text.

use crate::checker::Verdict;
use crate::report::{MeasuredFlow, Report, Share};
use crate::server::StatementCost;
use crate::steady::Steady;
use crate::usage::Usage;
use outbox_relay::cli::output::thousands;
use std::fmt::Write as _;

const MIB: f64 = (1 << 20) as f64;
const PARTIES: [&str; 3] = ["relay", "postgres", "kafka"];

pub fn render(report: &Report) -> String {
    let mut text = String::new();
    head(report, &mut text);
    rates(report, &mut text);
    flows(report, &mut text);
    steady(report, &mut text);
    idle(report, &mut text);
    verdict(report, &mut text);
    findings(report, &mut text);
    text
}

fn head(report: &Report, text: &mut String) {
    let (machine, shape, settings) = (&report.machine, &report.shape, &report.settings);
    let hidden = |why: &Option<String>| {
        why.as_ref().map_or(String::new(), |why| format!(", CPU and memory unknown ({why})"))
    };
    text.extend([
        format!("outbox-relay {} on {} cores\n", report.version, machine.cores),
        format!(
            "PostgreSQL {}, round trip {:.2} ms{}; Kafka, round trip {:.2} ms{}\n",
            machine.postgres_version,
            machine.postgres_round_trip_ms,
            hidden(&machine.postgres_not_visible),
            machine.kafka_round_trip_ms,
            hidden(&machine.kafka_not_visible),
        ),
        format!(
            "{} rows of {} bytes, {} keys, {} partitions; {} workers, batches of {} rows or {:.0} MiB, on_sent = {}\n",
            number(shape.rows as f64),
            number(shape.payload_bytes as f64),
            number(shape.keys as f64),
            report.partitions,
            settings.workers,
            number(settings.batch_size as f64),
            settings.batch_bytes as f64 / MIB,
            settings.on_sent,
        ),
    ]);
}

fn rates(report: &Report, text: &mut String) {
    let limits = &report.limits;
    let alone = [
        ("claim and mark, no Kafka", &limits.claim_and_mark),
        ("claim and delete, no Kafka", &limits.claim_and_delete),
        ("produce, no PostgreSQL", &limits.produce),
    ];
    let alone: Vec<String> = alone
        .into_iter()
        .filter_map(|(name, limit)| {
            limit.as_ref().map(|limit| rate_row(name, limit.rows_per_second, &limit.usage, None))
        })
        .collect();
    let drains: Vec<String> = report
        .drains
        .iter()
        .map(|measured| {
            let load = match measured.load {
                "held-snapshot" => ", snapshot held",
                "hot-key-100" => ", one key",
                "hot-key-50" => ", half of the rows one key",
                _ => "",
            };
            let name = format!("drain, {}{load}", measured.on_sent);
            rate_row(
                &name,
                measured.drain.rows_per_second,
                &measured.drain.usage,
                Some(measured.limit.as_ref()),
            )
        })
        .collect();
    if alone.is_empty() && drains.is_empty() {
        return;
    }
    text.push('\n');
    text.push_str(&columns(["", "", "", "CPU,", "µs/row", "", "", "memory,", "MiB"]));
    text.push_str(&columns([
        "", "rows/s", "of limit", "relay", "postgres", "kafka", "relay", "postgres", "kafka",
    ]));
    text.extend(alone);
    text.extend(drains);
    let held = report.drains.iter().filter(|measured| measured.load == "held-snapshot");
    for measured in held {
        _ = writeln!(
            text,
            "  with the snapshot held: {} rows/s in the first third, {} rows/s in the last third",
            number(measured.drain.first_third_rows_per_second),
            number(measured.drain.last_third_rows_per_second)
        );
    }
}

/// A row of the table. Limits have no limit. The relay's code runs in the measuring process then, so its memory is not
/// meaningful.
fn rate_row(name: &str, rate: f64, usage: &[Usage], limit: Option<Option<&Share>>) -> String {
    let by = |by| if by == "claim-and-settle" { "claim" } else { by };
    let share = limit.flatten().map(|limit| format!("{:.0}% {:<8}", limit.share * 100.0, by(limit.by)));
    let [relay, postgres, kafka] = PARTIES.map(|party| us(usage, party));
    let [relay_mib, postgres_mib, kafka_mib] = PARTIES.map(|party| mib(usage, party));
    let relay_mib = if limit.is_some() { &relay_mib } else { "-" };
    let (rate, share) = (number(rate), share.unwrap_or_default());
    columns([name, &rate, &share, &relay, &postgres, &kafka, relay_mib, &postgres_mib, &kafka_mib])
}

fn columns([name, rate, limit, us_1, us_2, us_3, mib_1, mib_2, mib_3]: [&str; 9]) -> String {
    let line =
        format!("{name:<32}{rate:>9}{limit:>15}{us_1:>8}{us_2:>9}{us_3:>7}{mib_1:>8}{mib_2:>9}{mib_3:>7}");
    format!("{}\n", line.trim_end())
}

fn us(usage: &[Usage], party: &str) -> String {
    let us = find(usage, party).and_then(|usage| usage.cpu_us_per_row);
    us.map_or("-".to_owned(), |us| format!("{us:.1}"))
}

fn mib(usage: &[Usage], party: &str) -> String {
    let bytes = find(usage, party).map(|usage| usage.memory_peak_bytes as f64);
    bytes.map_or("-".to_owned(), |bytes| format!("{:.0}", bytes / MIB))
}

fn flows(report: &Report, text: &mut String) {
    for MeasuredFlow { alone_rows_per_second: alone, writers_share, delivered_share, flow } in &report.flows {
        let rows = if flow.rows_per_transaction == 1 { "row" } else { "rows" };
        _ = writeln!(
            text,
            "\nflow, {} writers, {} {rows} per transaction\n  \
             written   {:>10} rows/s, {:.0}% of the {} without a relay\n  \
             delivered {:>10} rows/s, {:.1}% of the rows; lag {} rows halfway, {} rows at the end, caught up after {:.2} s\n  \
             CPU, % of one core: {}",
            flow.writers,
            flow.rows_per_transaction,
            number(flow.written_rows_per_second),
            writers_share * 100.0,
            number(*alone),
            number(flow.delivered_rows_per_second),
            delivered_share * 100.0,
            number(flow.lag_rows_half as f64),
            number(flow.lag_rows_end as f64),
            flow.catch_up_seconds,
            cores(&flow.usage),
        );
    }
}

fn steady(report: &Report, text: &mut String) {
    if report.steady.is_empty() {
        return;
    }
    text.push_str(
        "\nsteady, from COMMIT to the consumer    p50 ms      p99    p99.9      max    CPU, % of a core\n",
    );
    for Steady { rows_per_second, committed_rows_per_second: committed, latency, usage, .. } in &report.steady
    {
        let asked = format!("{} rows/s", number(*rows_per_second as f64));
        let share = committed / *rows_per_second as f64;
        let kept =
            if share < 0.98 { format!(" (only {} written)", number(*committed)) } else { String::new() };
        _ = writeln!(
            text,
            "  {:<33}{:>9.1}{:>9.1}{:>9.1}{:>9.1}    {}",
            asked + &kept,
            latency.p50_ms,
            latency.p99_ms,
            latency.p999_ms,
            latency.max_ms,
            cores(usage)
        );
    }
    for Steady { rows_per_second, statements, .. } in &report.steady {
        if statements.is_empty() {
            continue;
        }
        let title = format!("statements at {} rows/s, by time", number(*rows_per_second as f64));
        _ = writeln!(text, "\n{title:<37}   share  per row       µs");
        for StatementCost { statement, calls_per_row, us_per_call, share } in statements {
            let share = share * 100.0;
            _ = writeln!(text, "  {statement:<35}{share:>7.1}%{calls_per_row:>9.2}{us_per_call:>9.1}");
        }
    }
}

fn idle(report: &Report, text: &mut String) {
    if let Some(idle) = &report.idle {
        _ = writeln!(text, "\nidle, CPU, % of one core: {}", cores(&idle.usage));
    }
}

fn verdict(report: &Report, text: &mut String) {
    let sum = |of: fn(&Verdict) -> u64| number(report.verdicts().map(of).sum::<u64>() as f64);
    if report.verdicts().next().is_some() {
        _ = writeln!(
            text,
            "\nverified: committed {}, arrived {}, lost {}, duplicates {}, reordered {}, foreign {}",
            sum(|verdict| verdict.committed),
            sum(|verdict| verdict.arrived),
            sum(|verdict| verdict.lost),
            sum(|verdict| verdict.duplicates),
            sum(|verdict| verdict.reordered),
            sum(|verdict| verdict.foreign),
        );
    }
}

fn findings(report: &Report, text: &mut String) {
    for (at, finding) in report.findings.iter().enumerate() {
        let title = if at == 0 && !report.drains.is_empty() { "\nlimit of the drain: " } else { "\nalso: " };
        _ = writeln!(text, "{title}{}\n  change: {}", finding.seen, finding.change);
    }
}

/// `relay 1.2, postgres 0.9`.
fn cores(usage: &[Usage]) -> String {
    let parts: Vec<String> =
        usage.iter().map(|usage| format!("{} {:.1}", usage.party, usage.cores * 100.0)).collect();
    parts.join(", ")
}

fn find<'a>(usage: &'a [Usage], party: &str) -> Option<&'a Usage> {
    usage.iter().find(|usage| usage.party == party)
}

/// A whole number with commas, such as 150,000.
pub fn number(number: f64) -> String {
    thousands(number.round() as usize)
}
