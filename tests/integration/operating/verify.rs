//! `outbox-relay verify` finds each fault that is injected into a delivery, and nothing else.

mod delivery;
mod faults;
mod limits;

use delivery::{Delivery, EVENTS};
use serde_json::json;

use crate::operating::commands::nowhere;
use crate::support::outbox::Outbox;
use rdkafka::consumer::{BaseConsumer, Consumer};
use std::time::Duration;

#[tokio::test]
async fn clean_delivery_has_no_findings_and_joins_no_group() {
    for payload in ["json", "jsonb", "text", "bytea"] {
        let delivery = Delivery::with_payload(&format!("verify_{payload}"), payload).await;
        let report = delivery.verify(0);
        for (field, expected) in [
            ("events", json!(EVENTS)),
            ("records", json!(EVENTS)),
            ("broken", json!(0)),
            ("duplicates", json!(0)),
            ("topics", json!([delivery.topic()])),
            ("findings", json!([])),
        ] {
            assert_eq!(report[field], expected, "{payload}: {field} in {report:#}");
        }
        assert!(report["not_judged"].as_object().unwrap().values().all(|count| *count == 0), "{report:#}");
        let text = delivery.command(&["verify"]);
        assert!(text.succeeds().contains("  events               40\n"), "{text}");
        let client: BaseConsumer = delivery.outbox.cluster.client().create().unwrap();
        let groups = client.fetch_group_list(None, Duration::from_secs(30)).unwrap();
        assert!(groups.groups().iter().all(|group| group.name() != "outbox-relay-verify"));
        delivery.drop().await;
    }
}

#[tokio::test]
async fn what_cannot_be_verified_ends_with_one_message() {
    let delivery = Delivery::new("verify_usage").await;
    let fails = |args: &[&str], code, message: &str| {
        let ended = delivery.command(&[&["verify"], args].concat());
        ended.fails(code, &[message]);
        let lines = ended.stderr.lines().filter(|line| line.starts_with("error:")).count();
        assert_eq!((lines, ended.stdout.as_str()), (1, ""), "{ended}");
    };
    fails(&["--since", "1h", "--until", "2h"], 2, "--since must be before --until");
    fails(&["--since", "2100-01-01T00:00:00Z"], 2, "--since is in the future");
    fails(&["--since", "yesterday"], 2, "write a duration before now, such as 2h");
    fails(&["--since", "9000years"], 2, "is before 1970");
    fails(&["--topic", "no-such-topic"], 2, "Topic no-such-topic does not exist");
    fails(&["--topic", "not a topic"], 2, "--topic not a topic: character");
    fails(&["--temp-dir", "/does/not/exist"], 2, "Cannot write temporary files in /does/not/exist");
    let ended = delivery.outbox.operator().set("outbox", "on_sent", "delete").command(&["verify"]);
    ended.fails(78, &["on_sent = \"delete\" deletes each event as soon as it is sent"]);
    let nameless = delivery.outbox.operator().set_inner("outbox", "headers", "type", "{event_type}");
    nameless.command(&["verify"]).fails(78, &["no header in [outbox.headers] is {event_id}"]);
    let ended = delivery.outbox.relay().command(&["verify"]);
    ended.fails(78, &["SELECT on \"app\".\"outbox_act\", which only operators have"]);
    let ended = delivery.outbox.operator().set("kafka", "bootstrap_servers", nowhere()).command(&["verify"]);
    ended.fails(69, &["Kafka failed: no broker reachable at"]);
    let unreachable = format!("postgres://operator@{}/app", nowhere());
    let ended = delivery.outbox.operator().set("postgres", "url", unreachable).command(&["verify"]);
    assert_eq!(ended.code, 69, "{ended}");
    delivery.drop().await;
}

#[tokio::test]
async fn empty_outbox_has_nothing_to_verify() {
    let outbox = Outbox::create("verify_empty", 1).await;
    let ended = outbox.operator().command(&["verify"]);
    assert!(ended.succeeds().contains("  events                0\n"), "{ended}");
    outbox.drop().await;
}
