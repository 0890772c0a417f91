//! `[outbox.headers]`.

use super::with;
use crate::config::Part::{AggregateId, AggregateType, CreatedAt, EventId, EventType, Text};
use crate::config::{Effect, HeaderTemplate, changes, default_headers};

fn header(name: &str, value: &[crate::config::Part]) -> HeaderTemplate {
    HeaderTemplate { name: name.to_owned(), value: value.to_vec() }
}

#[test]
fn without_headers_the_record_has_the_default_ones() {
    for text in ["", "[outbox.headers]\n"] {
        let config = with(text).load().unwrap();
        assert_eq!(config.outbox.headers, default_headers());
        assert!(config.warnings.is_empty());
    }
}

#[test]
fn templates_are_text_and_placeholders() {
    let text = "[outbox.headers]\nid = '{event_id}'\nsource = 'shop'\nempty = ''\nbraces = '{{{{x}}}}{{'\n\
                trace.id = 'a{aggregate_type}{aggregate_id}-{created_at}/{event_type}'\n\"ä b\" = 'ü'\n";
    let config = with(text).load().unwrap();
    let text = |text: &str| Text(text.to_owned());
    let expected = [
        header("braces", &[text("{{x}}{")]),
        header("empty", &[]),
        header("id", &[EventId]),
        header("source", &[text("shop")]),
        header(
            "trace.id",
            &[text("a"), AggregateType, AggregateId, text("-"), CreatedAt, text("/"), EventType],
        ),
        header("ä b", &[text("ü")]),
    ];
    assert_eq!(config.outbox.headers, expected);
    let reserved = config.outbox.headers.iter().filter(|header| header.is_reserved());
    assert_eq!(reserved.map(|header| header.name.as_str()).collect::<Vec<_>>(), ["id", "trace.id"]);
    assert!(config.warnings.is_empty());
}

#[test]
fn invalid_templates_are_findings() {
    let long = "x".repeat(1_001);
    for (line, expected) in [
        ("h = '{id}'", "header `h` contains {id}, but IDs can be issued again after a failover"),
        ("h = '{event-id}'", "header `h` contains the unknown placeholder {event-id}"),
        ("h = '{event-id}'", "help: did you mean {event_id}?"),
        ("h = '{payload}'", "the placeholders are {event_id}, {event_type}, {aggregate_type}"),
        ("h = '{}'", "contains the unknown placeholder {}"),
        ("h = 'a{event_id'", "has an unmatched {"),
        ("h = 'a}'", "has an unmatched }"),
        ("h = 1", "header `h` must be a string"),
        ("h = ['x']", "header `h` must be a string"),
        ("\"\" = 'x'", "header `` has an invalid name"),
        ("\"a\\nb\" = 'x'", "header `a\\nb` has an invalid name"),
        ("h = \"a\\nb\"", "header `h` contains a control character"),
        ("source = 'y'\nSource = 'x'", "the headers `Source` and `source` differ only in case"),
        ("\"a\\u0000\" = 'x'", "header `a\\0` has an invalid name"),
        (&format!("h = '{long}'"), "header `h` is longer than 1000 bytes"),
        (&format!("{long} = 'h'"), "is longer than 1000 bytes"),
    ] {
        let findings = with(&format!("[outbox.headers]\nevent_id = '{{event_id}}'\n{line}\n")).findings();
        let found =
            findings.iter().any(|finding| finding.contains("config.toml:7") && finding.contains(expected));
        assert!(found && findings.len() == 1, "{line}: {findings:?}");
    }
    let many: String = (0..100).map(|n| format!("h{n} = 'x'\n")).collect();
    let findings = with(&format!("[outbox.headers]\n{many}")).load().unwrap().warnings;
    assert!(findings.to_string().contains("consumers cannot recognize a duplicate"), "{findings}");
    let findings = with(&format!("[outbox.headers]\nid = '{{event_id}}'\n{many}")).findings();
    assert!(findings[0].contains("has 101 headers, but must have at most 100"), "{findings:?}");
}

#[test]
fn headers_without_the_event_id_are_a_warning() {
    for (text, warns) in
        [("id = 'x{event_id}'", true), ("type = '{event_type}'", true), ("id = '{event_id}'", false)]
    {
        let warnings = with(&format!("[outbox.headers]\n{text}\n")).load().unwrap().warnings;
        assert_eq!(warnings.to_string().contains("consumers cannot recognize a duplicate"), warns, "{text}");
    }
}

#[test]
fn changed_headers_need_a_restart() {
    let old = with("").load().unwrap();
    let new = with("[outbox.headers]\nid = '{event_id}'\n").load().unwrap();
    let changes = changes(&old, &new);
    assert_eq!(changes.len(), 1);
    assert_eq!(
        (changes[0].section, changes[0].key.as_str(), changes[0].effect),
        ("outbox", "headers", Effect::Restart)
    );
    assert_eq!(old.reloaded(&new).outbox.headers, default_headers());
}

const CLOUD_EVENTS: &str = "[outbox]\nenvelope = 'cloudevents'\n";

fn names_and_values(text: &str) -> Vec<(String, Vec<crate::config::Part>)> {
    let config = with(text).load().unwrap();
    assert!(config.warnings.is_empty(), "{}", config.warnings);
    config.outbox.headers.into_iter().map(|header| (header.name, header.value)).collect()
}

#[test]
fn an_envelope_of_cloud_events_has_all_attributes() {
    let text = |text: &str| vec![Text(text.to_owned())];
    let headers =
        names_and_values(&format!("{CLOUD_EVENTS}cloudevents_source = '/shop/{{aggregate_type}}'\n"));
    let expected = [
        ("ce_id", vec![EventId]),
        ("ce_source", vec![Text("/shop/".to_owned()), AggregateType]),
        ("ce_specversion", text("1.0")),
        ("ce_subject", vec![AggregateId]),
        ("ce_time", vec![CreatedAt]),
        ("ce_type", vec![EventType]),
        ("content-type", text("application/json")),
    ];
    assert_eq!(headers, expected.map(|(name, value)| (name.to_owned(), value)));
}

#[test]
fn headers_are_added_to_an_envelope_and_replace_its_headers() {
    let own = "[outbox.headers]\ncontent-type = 'application/avro'\ntenant = 'a'\n";
    let headers = names_and_values(&format!("{CLOUD_EVENTS}cloudevents_source = '/shop'\n{own}"));
    let value = |name: &str| headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone());
    assert_eq!(headers.len(), 8);
    assert_eq!(value("content-type"), Some(vec![Text("application/avro".to_owned())]));
    assert_eq!(value("tenant"), Some(vec![Text("a".to_owned())]));
}

#[test]
fn a_source_of_cloud_events_that_is_missing_or_invalid_is_a_finding() {
    for (source, expected) in [
        ("", "[outbox] cloudevents_source is missing, but CloudEvents require a source"),
        ("cloudevents_source = 'my shop'", "cloudevents_source is not a URI reference"),
        ("cloudevents_source = '{{x}}'", "cloudevents_source is not a URI reference"),
        ("cloudevents_source = '/{id}'", "cloudevents_source contains {id}"),
    ] {
        let findings = with(&format!("{CLOUD_EVENTS}{source}\n")).findings();
        assert!(findings.len() == 1 && findings[0].contains(expected), "{source}: {findings:?}");
    }
    let warnings = with("[outbox]\ncloudevents_source = '/shop'\n").load().unwrap().warnings;
    assert!(warnings.to_string().contains("envelope is not \"cloudevents\""), "{warnings}");
}

#[test]
fn the_examples_of_the_manual_are_valid_and_identify_the_event() {
    let page = include_str!("../../../docs/record-format.md");
    let blocks: Vec<&str> =
        page.split("```toml ").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 3);
    for block in blocks {
        let (_, text) = block.split_once('\n').unwrap();
        let config = with(text).load().unwrap();
        let shows_headers = config.outbox.topic_allow.is_none();
        assert!(config.warnings.is_empty() && (config.outbox.headers.len() >= 4 || !shows_headers), "{text}");
    }
}
