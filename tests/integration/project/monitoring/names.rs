//! Every metric in the dashboard, the rules and the pages exists.

use super::{DASHBOARD, RULES, RUNBOOK, read};
use outbox_relay::admin::metrics::{CATALOGUE, Metric};
use serde_json::Value;
use std::collections::BTreeSet;

/// The words of a text that can only be metrics of the relay.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = |word: &&str| {
        (word.starts_with("outbox_relay_") && *word != "outbox_relay_") || word.starts_with("process_")
    };
    words.filter(ours).map(str::to_owned).collect()
}

fn assert_they_exist(path: &str, named: &BTreeSet<String>) {
    let samples: BTreeSet<String> = CATALOGUE.iter().flat_map(Metric::samples).collect();
    let unknown: Vec<_> = named.difference(&samples).collect();
    assert!(unknown.is_empty(), "{path} contains unknown metrics: {unknown:?}");
    assert!(!named.is_empty(), "{path} contains no metrics");
}

/// The queries of the dashboard, of its panels and variables.
pub fn queries() -> Vec<String> {
    fn collect(value: &Value, into: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                into.extend(
                    ["expr", "definition"].iter().filter_map(|key| Some(map.get(*key)?.as_str()?.to_owned())),
                );
                map.values().for_each(|value| collect(value, into));
            }
            Value::Array(list) => list.iter().for_each(|value| collect(value, into)),
            _ => {}
        }
    }
    let mut queries = Vec::new();
    collect(&serde_json::from_str(&read(DASHBOARD)).unwrap(), &mut queries);
    queries
}

/// A query of the dashboard as Grafana would send it, for a server that scrapes five times per second.
pub fn with_variables(query: &str) -> String {
    query.replace("$job", "outbox-relay").replace("$instance", ".*").replace("$__rate_interval", "5s")
}

#[test]
fn every_metric_of_the_dashboard_exists() {
    assert_they_exist(DASHBOARD, &metrics(&queries().join("\n")));
}

#[test]
fn every_metric_of_the_rules_and_their_tests_exists() {
    assert_they_exist(RULES, &metrics(&read(RULES)));
    let tests = "monitoring/prometheus/outbox-relay.test.yml";
    assert_they_exist(tests, &metrics(&read(tests)));
}

#[test]
fn every_metric_of_the_pages_exists() {
    for page in [RUNBOOK, "docs/failures.md"] {
        assert_they_exist(page, &metrics(&read(page)));
    }
}

#[test]
fn dashboard_can_be_imported_anywhere() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_i64().unwrap()), "{title}: duplicate id");
        if panel["type"] == "row" {
            continue;
        }
        assert!(
            panel["description"].as_str().is_some_and(|text| !text.is_empty()),
            "{title}: no description"
        );
        for place in panel["targets"].as_array().unwrap().iter().chain([panel]) {
            assert_eq!(place["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
    let variables: Vec<&str> = dashboard["templating"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v["name"].as_str().unwrap())
        .collect();
    assert_eq!(variables, ["datasource", "job", "instance"]);
}
