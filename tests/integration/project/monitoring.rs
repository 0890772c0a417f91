//! Metrics, dashboard, alert rules and runbook match each other and the relay.

mod metrics_page;
mod names;
mod picture;
mod prometheus;
mod runbook;
pub(crate) mod scrape;

use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const RULES: &str = "monitoring/prometheus/outbox-relay.rules.yml";
const DASHBOARD: &str = "monitoring/grafana/outbox-relay.json";
const RUNBOOK: &str = "docs/runbook.md";

fn read(path: &str) -> String {
    std::fs::read_to_string(format!("{ROOT}/{path}")).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The output of `scripts/monitoring`.
fn script(args: &[&str]) -> String {
    let output = Command::new(format!("{ROOT}/scripts/monitoring")).args(args).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    printed
}

#[test]
fn alert_rules_are_valid_and_pass_their_tests() {
    let printed = script(&[]);
    assert!(printed.contains(&format!("SUCCESS: {} rules found", runbook::alerts().len())), "{printed}");
    assert!(printed.trim_end().ends_with("SUCCESS"), "{printed}");
}
