//! `docs/metrics.md` contains the catalogue of metrics. `make docs` writes it.

use crate::support::rendered;
use outbox_relay::admin::metrics::{CATALOGUE, Metric, MetricKind, Question};

fn tables() -> String {
    let questions = [
        (Question::Late, "Availability and lag"),
        (Question::Fast, "Throughput"),
        (Question::Failed, "Failures"),
        (Question::Costs, "Cost"),
    ];
    questions.map(|(question, title)| format!("\n## {title}\n\n{}\n", table(question))).concat()
}

fn table(question: Question) -> String {
    let mut table = String::from(
        "| Name | Type | Unit | Labels | Meaning | Sign of a problem |\n|---|---|---|---|---|---|\n",
    );
    for metric in CATALOGUE.iter().filter(|metric| metric.answers == question) {
        let Metric { name, kind, labels, help, bad, .. } = metric;
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
            MetricKind::Info => "info",
        };
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let (unit, labels) = (metric.unit().unwrap_or_default(), labels.join(", "));
        table +=
            &format!("| `{name}` | {kind} | {unit} | {labels} | {help} | {bad} |\n").replace("|  |", "| |");
    }
    table.replace("|  |", "| |")
}

#[test]
fn page_shows_the_catalogue() {
    rendered::check("docs/metrics.md", &[("crates/relay/src/health/stats.rs", tables())]);
}

#[test]
fn names_follow_the_conventions_of_prometheus() {
    for metric in CATALOGUE.iter() {
        let Metric { name, kind, .. } = metric;
        assert!(name.starts_with("outbox_relay_") || name.starts_with("process_"), "{name}");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
        assert_eq!(name.ends_with("_total"), *kind == MetricKind::Counter, "{name}");
        assert_eq!(name.ends_with("_info"), *kind == MetricKind::Info, "{name}");
        for unit in ["_ms", "_milliseconds", "_kb", "_mb", "_percent", "_count", "_sum", "_bucket"] {
            assert!(!metric.family().ends_with(unit), "{name}");
        }
        assert_eq!(CATALOGUE.iter().filter(|other| other.name == *name).count(), 1, "{name}");
    }
}
