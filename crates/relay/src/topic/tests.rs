//! The topics of rows with various types and names.

use super::*;
use crate::outbox::Payload;
use crate::{Lane, fixture};
use std::collections::HashSet;
use uuid::Uuid;

/// A row with an aggregate type, an event type, and the topic that it names.
#[derive(Clone, Copy)]
struct Row(&'static str, &'static str, Option<&'static str>);

impl Event for Row {
    fn id(&self) -> i64 {
        1
    }
    fn event_id(&self) -> Uuid {
        Uuid::nil()
    }
    fn lane(&self) -> Lane {
        fixture::Row(1).lane()
    }
    fn aggregate_type(&self) -> &[u8] {
        self.0.as_bytes()
    }
    fn topic(&self) -> Option<&[u8]> {
        self.2.map(str::as_bytes)
    }
    fn key(&self) -> &[u8] {
        b"42"
    }
    fn event_type(&self) -> &[u8] {
        self.1.as_bytes()
    }
    fn payload(&self) -> Payload<'_> {
        Payload::Tombstone
    }
    fn headers(&self) -> Option<&[u8]> {
        None
    }
    fn created_at_us(&self) -> i64 {
        0
    }
    fn size(&self) -> usize {
        1
    }
}

fn rules(template: &str, allow: Option<&str>) -> TopicRules {
    let template = template.parse().unwrap();
    TopicRules { template, column: true, allow: allow.map(|allow| allow.parse().unwrap()) }
}

fn rejected(rules: &TopicRules, row: Row) -> (String, &'static str, String) {
    let (name, rejection) = (name(rules, &row), of(rules, &row).unwrap_err());
    (name, rejection.reason, rejection.error)
}

#[test]
fn a_named_topic_wins_only_if_it_is_allowed() {
    let rules = rules("events.{aggregate_type}.{event_type}", Some("audit.*, billing"));
    assert_eq!(of(&rules, &Row("order", "Paid", None)).unwrap(), "events.order.Paid");
    assert_eq!(of(&rules, &Row("order", "Paid", Some("audit.x"))).unwrap(), "audit.x");
    let (name, reason, error) = rejected(&rules, Row("order", "Paid", Some("events.order.Paid")));
    assert_eq!((name.as_str(), reason), ("events.order.Paid", "topic-not-allowed"));
    assert_eq!(
        error,
        "the event names the topic events.order.Paid, but [outbox] topic_allow is \"audit.*, billing\""
    );
    for invalid in ["", "audit.x y", ".."] {
        assert_eq!(
            rejected(&rules, Row("order", "Paid", Some(invalid))).1,
            "invalid-topic-name",
            "{invalid}"
        );
    }
}

#[test]
fn without_the_setting_no_topic_is_allowed() {
    let rules = rules("events", None);
    assert_eq!(of(&rules, &Row("order", "Paid", None)).unwrap(), "events");
    let (_, reason, error) = rejected(&rules, Row("order", "Paid", Some("events")));
    assert_eq!(reason, "topic-not-allowed");
    assert_eq!(error, "the event names the topic events, but [outbox] topic_allow is not set");
}

#[test]
fn rows_that_differ_in_what_determines_their_topic_have_different_dependencies() {
    let rows = [
        Row("a", "bc", None),
        Row("ab", "c", None),
        Row("abc", "", None),
        Row("", "abc", None),
        Row("a", "b", Some("abc")),
        Row("a", "b", Some("")),
        Row("a", "b", None),
    ];
    let (mut buffer, mut seen) = (Vec::new(), HashSet::new());
    let rules = rules("{aggregate_type}{event_type}", None);
    for row in &rows {
        assert!(seen.insert(dependency(&rules, row, &mut buffer).to_vec()), "{:?}", (row.0, row.1, row.2));
    }
    // A type that the topic does not depend on makes no difference.
    for (template, same) in
        [("events.{aggregate_type}", [1, 0]), ("events.{event_type}", [0, 1]), ("all", [0, 0])]
    {
        let rules = self::rules(template, Some("audit.*"));
        let mut of = |aggregate_type, event_type| {
            dependency(&rules, &Row(aggregate_type, event_type, None), &mut buffer).to_vec()
        };
        let usual = of("order", "Paid");
        let changed = [of("refund", "Paid") != usual, of("order", "Sent") != usual].map(usize::from);
        assert_eq!(changed, same, "{template}");
    }
    // With the usual template, the aggregate type is enough, and nothing is copied.
    let usual: TopicRules = "events.{aggregate_type}".parse().unwrap();
    let mut untouched = Vec::new();
    assert_eq!(dependency(&usual, &rows[1], &mut untouched), b"ab");
    assert!(untouched.is_empty());
}

fn allow(text: &str) -> TopicAllow {
    text.parse().unwrap()
}

#[test]
fn names_and_prefixes_allow_only_what_they_match() {
    let allow = allow("billing, audit.*,.*");
    for topic in ["billing", "audit.", "audit.orders", ".a", ".."] {
        assert!(allow.contains(topic), "{topic}");
    }
    for topic in ["", "billin", "billing2", "audit", "Audit.orders", "x.audit.orders", "*"] {
        assert!(!allow.contains(topic), "{topic}");
    }
    assert_eq!(allow.to_string(), "billing, audit.*, .*");
}

#[test]
fn invalid_lists_have_one_message_each() {
    let refused = |text: &str| text.parse::<TopicAllow>().expect_err(text);
    for (text, error) in [
        ("", "a name is empty"),
        ("a,,b", "a name is empty"),
        ("a, ", "a name is empty"),
        ("*", "a prefix needs at least one character before the *"),
        ("a, *", "a prefix needs at least one character before the *"),
    ] {
        assert_eq!(refused(text), error, "{text:?}");
    }
    assert!(refused("a*b").starts_with("\"a*b\": character '*' at position 2"), "{}", refused("a*b"));
    assert!(refused("a b*").starts_with("\"a b*\": character ' ' at position 2"), "{}", refused("a b*"));
    assert!(refused("a**").starts_with("\"a**\": character '*' at position 2"), "{}", refused("a**"));
    assert!(refused("..").contains("reserves"), "{}", refused(".."));
    assert!(refused(&format!("{}*", "x".repeat(249))).contains("250 characters"));
}
