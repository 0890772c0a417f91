//! `[outbox.columns]`.

use super::{Case, LEAST, with};
use crate::config::{Column, Effect, changes};

#[test]
fn columns_have_their_standard_names_unless_they_are_set() {
    let config =
        with("[outbox.columns]\naggregate_id = 'ref'\nsent_at = 'Published at'\nid = 'id'\n").load().unwrap();
    let columns = config.outbox.table.columns();
    assert_eq!(columns.name(Column::AggregateId), "ref");
    assert_eq!(columns.name(Column::SentAt), "Published at");
    assert_eq!(columns.name(Column::Payload), "payload");
    let renamed: Vec<_> = columns.renamed().collect();
    assert_eq!(renamed, [(Column::AggregateId, "ref"), (Column::SentAt, "Published at")]);
    for text in ["", "[outbox.columns]\n", "[outbox.columns]\nid = 'id'\n"] {
        assert!(with(text).load().unwrap().outbox.table.columns().are_standard(), "{text}");
    }
    let environment = with("[outbox.columns]\nid = 'seq'\n").env("OUTBOX_RELAY__OUTBOX__COLUMNS__ID", "nr");
    assert_eq!(environment.load().unwrap().outbox.table.columns().name(Column::Id), "nr");
}

#[test]
fn invalid_columns_are_findings() {
    let long = "x".repeat(64);
    for (line, expected) in [
        (
            "agregate_id = 'ref'",
            "unknown column `agregate_id` in [outbox.columns]\n  6 | agregate_id = …\n  help: did you mean `aggregate_id`?",
        ),
        (
            "tenant = 'x'",
            "help: the columns are id, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, sent_at, topic",
        ),
        ("sent_at = ''", "[outbox.columns] sent_at is empty"),
        ("sent_at = 1", "[outbox.columns] sent_at must be a string"),
        (&format!("sent_at = '{long}'"), "[outbox.columns] sent_at has 64 bytes, but the maximum is 63"),
        ("sent_at = \"a\\nb\"", "[outbox.columns] sent_at contains a control character or `$$`"),
        ("sent_at = 'a$$b'", "[outbox.columns] sent_at contains a control character or `$$`"),
        (
            "event_id = 'id'",
            "[outbox.columns] event_id and id both name the column \"id\"\n  6 | event_id = …\n  help: also set id, whose standard name is id",
        ),
        (
            "payload = 'body'\nheaders = 'body'",
            "[outbox.columns] headers and payload both name the column \"body\"\n  7 | headers = 'body'\n  help: each needs a column of its own",
        ),
    ] {
        let findings = with(&format!("[outbox.columns]\n{line}\n")).findings();
        assert!(findings.len() == 1 && findings[0].contains(expected), "{line}: {findings:#?}");
    }
    Case::new(&format!("{LEAST}[outbox]\ncolumns = ['id']\n")).assert_finding(
        "error: config.toml:6: [outbox] columns must be a table, not a list\n  6 | columns = ['id']\n  help: for example \
         columns = { aggregate_id = \"ref\" }",
    );
}

#[test]
fn columns_can_swap_names_and_replace_the_optional_topic() {
    let columns =
        with("[outbox.columns]\nid = 'seq'\nevent_id = 'id'\naggregate_type = 'topic'\n").load().unwrap();
    let columns = columns.outbox.table.columns().clone();
    assert_eq!((columns.name(Column::EventId), columns.topic()), ("id", None));
    let columns = with("[outbox.columns]\naggregate_type = 'topic'\ntopic = 'target'\n").load().unwrap();
    assert_eq!(columns.outbox.table.columns().topic(), Some("target"));
    assert_eq!(with("").load().unwrap().outbox.table.columns().topic(), Some("topic"));
}

#[test]
fn changed_columns_need_a_restart() {
    let old = with("").load().unwrap();
    let new = with("[outbox.columns]\nid = 'seq'\n").load().unwrap();
    let changes = changes(&old, &new);
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!(
        (changes[0].section, changes[0].key.as_str(), changes[0].effect),
        ("outbox", "columns", Effect::Restart)
    );
    assert!(old.reloaded(&new).outbox.table.columns().are_standard());
    let renamed = with("[outbox]\ntable = 'app.events'\n").load().unwrap();
    assert_eq!(crate::config::changes(&old, &renamed)[0].key, "table");
}
