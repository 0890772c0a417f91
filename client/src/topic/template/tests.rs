use super::*;

fn refused(template: &str) -> TemplateError {
    TopicTemplate::parse(template).expect_err(template)
}

#[test]
fn placeholders_can_be_anywhere() {
    for (template, topic, prefix, suffix) in [
        ("events.{aggregate_type}", "events.order", "events.", ""),
        ("{aggregate_type}", "order", "", ""),
        ("{aggregate_type}.v1", "order.v1", "", ".v1"),
        ("a-{aggregate_type}_b", "a-order_b", "a-", "_b"),
        ("{event_type}", "Paid", "", ""),
        ("a.{aggregate_type}.{event_type}.b", "a.order.Paid.b", "a.", ".b"),
        ("{event_type}{aggregate_type}", "Paidorder", "", ""),
    ] {
        let parsed = TopicTemplate::parse(template).expect(template);
        assert_eq!(parsed.topic("order", "Paid"), topic);
        assert_eq!((parsed.prefix(), parsed.suffix(), parsed.is_constant()), (prefix, suffix, false));
        assert_eq!(parsed.to_string(), template);
        assert!(parsed.matches(topic), "{template}");
    }
    assert_eq!(TopicTemplate::default(), "events.{aggregate_type}".parse().unwrap());
}

#[test]
fn a_template_can_be_constant() {
    let template = TopicTemplate::parse("everything").unwrap();
    assert_eq!((template.prefix(), template.suffix(), template.is_constant()), ("everything", "", true));
    assert_eq!(template.topic("order", "Paid"), "everything");
    assert_eq!(template.to_string(), "everything");
}

#[test]
fn rendering_replaces_the_content_of_the_string() {
    let mut topic = "old".to_owned();
    TopicTemplate::default().render("order", "Paid", &mut topic);
    assert_eq!(topic, "events.order");
}

#[test]
fn only_one_template_form_gives_each_aggregate_type_its_own_topic() {
    let is_by_type = |template: &str| TopicTemplate::parse(template).expect(template).is_by_aggregate_type();
    assert!(is_by_type("events.{aggregate_type}.v1"));
    for template in ["all", "{event_type}", "{aggregate_type}.{event_type}"] {
        assert!(!is_by_type(template), "{template}");
    }
}

#[test]
fn a_topic_matches_if_every_placeholder_has_a_value() {
    let matches = |template: &str, topic| TopicTemplate::parse(template).expect(template).matches(topic);
    for (template, topic) in [
        ("all", "all"),
        ("a.{event_type}", "a.b"),
        ("{aggregate_type}.{event_type}", "a.b"),
        ("{aggregate_type}.{event_type}", "a.b.c"),
        ("{aggregate_type}{event_type}", "ab"),
    ] {
        assert!(matches(template, topic), "{template} {topic}");
    }
    for (template, topic) in [
        ("all", "al"),
        ("all", "alll"),
        ("a.{event_type}", "a."),
        ("a.{event_type}", "b.a"),
        ("{event_type}.a", "b.a.c"),
        ("{aggregate_type}.{event_type}", "a."),
        ("{aggregate_type}.{event_type}", ".a"),
        ("{aggregate_type}.{event_type}", "ab"),
        ("{aggregate_type}{event_type}", "a"),
        ("{event_type}", "b c"),
        ("{event_type}", "ä"),
        ("{event_type}", ""),
    ] {
        assert!(!matches(template, topic), "{template} {topic}");
    }
}

#[test]
fn errors_have_the_position() {
    use TemplateError::*;
    let repeated = |name: &str, position| RepeatedPlaceholder { name: name.to_owned(), position };
    assert_eq!(refused("a b"), IllegalCharacter { character: ' ', position: 2 });
    assert_eq!(refused("ä{aggregate_type}"), IllegalCharacter { character: 'ä', position: 1 });
    assert_eq!(refused("a.{aggregate_type"), UnclosedBrace { position: 3 });
    assert_eq!(refused("{{aggregate_type}}"), UnclosedBrace { position: 1 });
    assert_eq!(refused("aggregate_type}"), UnopenedBrace { position: 15 });
    assert_eq!(refused("{aggregate_type}{aggregate_type}"), repeated("aggregate_type", 17));
    assert_eq!(refused("{event_type}.{aggregate_type}.{event_type}"), repeated("event_type", 31));
    assert_eq!(refused("x.{type}"), UnknownPlaceholder { name: "type".to_owned(), position: 3 });
    assert_eq!(refused("{}"), UnknownPlaceholder { name: String::new(), position: 1 });
    assert_eq!(refused(""), NotATopic(TopicError::Empty));
    assert_eq!(refused(".."), NotATopic(TopicError::Dots("..")));
}

#[test]
fn the_fixed_part_leaves_a_character_for_each_placeholder() {
    let with = |length: usize, placeholders: &str| format!("{}{placeholders}", "x".repeat(length));
    let both = "{aggregate_type}{event_type}";
    assert_eq!(refused(&with(249, "{event_type}")), TemplateError::NoRoom { length: 249 });
    assert_eq!(refused(&with(248, both)), TemplateError::NoRoom { length: 248 });
    assert!(TopicTemplate::parse(&with(248, "{event_type}")).is_ok());
    assert!(TopicTemplate::parse(&with(247, both)).is_ok());
}

#[test]
fn messages_name_the_right_placeholders() {
    assert_eq!(
        refused("x.{type}").to_string(),
        "unknown placeholder {type} at position 3. The placeholders are {aggregate_type} and {event_type}"
    );
    assert_eq!(
        refused("a.{aggregate_type").to_string(),
        "the { at position 3 is not closed. Write {aggregate_type} or {event_type}"
    );
    assert_eq!(
        refused("{event_type}{event_type}").to_string(),
        "second {event_type} at position 13. A placeholder can occur only once"
    );
}
