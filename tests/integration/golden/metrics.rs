//! The metrics of a relay: names, types, help texts and labels.

use super::difference;
use crate::project::monitoring::scrape::{busy, scrape, values};
use crate::support::wait::{STALLED, wait_until};
use outbox_relay::admin::metrics::{CATALOGUE, Metric};

/// A sample with the names of its labels, and the bounds of buckets.
fn without_values(line: &str) -> String {
    let Some((name, rest)) = line.split_once('{').filter(|_| !line.starts_with('#')) else {
        return match line.starts_with('#') {
            true => line.to_owned(),
            false => line.split(' ').next().unwrap_or_default().to_owned(),
        };
    };
    let labels = rest.rsplit_once('}').map_or(rest, |(labels, _)| labels).split("\",");
    let shown = |label: &str| match label.split_once('=') {
        Some(("le", bound)) => format!("le={}\"", bound.trim_end_matches('"')),
        Some((name, _)) => name.to_owned(),
        None => label.to_owned(),
    };
    format!("{name}{{{}}}", labels.map(shown).collect::<Vec<_>>().join(","))
}

#[tokio::test]
async fn metrics_are_unchanged() {
    if !super::is_recorded_version() {
        return;
    }
    let (outbox, relay) = busy("golden_metrics").await;
    // A broker is not shown while it has nothing to respond to.
    let mut text = String::new();
    wait_until("every metric has a value", STALLED, async || {
        text = scrape(&relay).await;
        CATALOGUE.iter().flat_map(Metric::samples).all(|sample| !values(&text, &sample).is_empty())
    })
    .await;
    let mut lines: Vec<String> = text.lines().map(without_values).collect();
    lines.dedup();
    assert_eq!(difference("metrics", &(lines.join("\n") + "\n")), None);
    drop(relay);
    outbox.drop().await;
}
