//! `migrate --print-queries` prints statements that the server can prepare and explain.

use postgres::connection::exec::plain_settings;
use tokio_postgres::SimpleQueryMessage;

use crate::support::database::run;
use crate::support::outbox::Outbox;

/// The name and the number of parameters of every prepared statement of the session.
async fn prepared(outbox: &Outbox) -> Vec<(String, usize)> {
    let sql = "SELECT name, cardinality(parameter_types) FROM pg_prepared_statements WHERE from_sql";
    let statement = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => {
            Some((row.get(0).unwrap().to_owned(), row.get(1).unwrap().parse().unwrap()))
        }
        _ => None,
    };
    outbox.client.simple_query(sql).await.unwrap().iter().filter_map(statement).collect()
}

#[tokio::test]
async fn every_printed_statement_can_be_prepared_and_explained() {
    let outbox = Outbox::without_topics("queries").await;
    for payload in ["json", "jsonb", "text", "bytea"] {
        let using = if payload == "bytea" { "convert_to(payload::text, 'UTF8')" } else { "payload::text" };
        let change =
            format!("ALTER TABLE app.outbox ALTER payload TYPE {payload} USING ({using})::{payload}");
        run(&outbox.client, &change).await;
        for (on_sent, topic) in [
            ("mark", "events.{aggregate_type}"),
            ("delete", "all-events"),
            ("mark", "{aggregate_type}.{event_type}"),
            ("delete", "{event_type}.v1"),
        ] {
            let relay = outbox.relay().set("outbox", "on_sent", on_sent).set("outbox", "topic", topic);
            let printed = relay.command(&["migrate", "--print-queries", "--payload", payload]);
            let script = printed.succeeds();
            run(&outbox.client, script).await;
            let statements = prepared(&outbox).await;
            assert_eq!(statements.len(), script.matches("\nPREPARE ").count(), "{script}");
            assert_eq!(statements.len(), script.matches("\n-- $1 ").count(), "{script}");
            assert!(statements.len() >= 29, "{statements:?}");
            assert!(statements.iter().any(|(name, _)| name == on_sent), "{statements:?}");
            run(&outbox.client, &format!("BEGIN; {}", plain_settings())).await;
            for (name, parameters) in &statements {
                let arguments = vec!["NULL"; *parameters].join(", ");
                run(&outbox.client, &format!("EXPLAIN EXECUTE {name} ({arguments})")).await;
            }
            run(&outbox.client, "ROLLBACK; DEALLOCATE ALL").await;
        }
    }
    outbox.drop().await;
}

/// The column is part of the statements only if `topic_allow` is set.
#[tokio::test]
async fn statements_read_the_column_topic_only_if_it_is_configured() {
    let outbox = Outbox::without_topics("queries_topic").await;
    let print = |relay: crate::support::relay::Relay| {
        relay.command(&["migrate", "--print-queries"]).succeeds().to_owned()
    };
    let plain = print(outbox.relay());
    assert!(!plain.contains("o.topic") && plain.contains("left(o.aggregate_type, 300)"), "{plain}");
    run(&outbox.client, "ALTER TABLE app.outbox ADD COLUMN topic text").await;
    assert_eq!(print(outbox.relay()), plain);
    for (on_sent, topic) in [("mark", "events.{aggregate_type}"), ("delete", "{event_type}"), ("mark", "all")]
    {
        let relay = outbox.relay().set("outbox", "topic_allow", "billing").set("outbox", "on_sent", on_sent);
        let script = print(relay.set("outbox", "topic", topic));
        assert!(script.contains("coalesce(left(o.topic, 300), "), "{script}");
        // Every statement that reads events.
        for name in ["read", "read_new", "read_new_if_free", "read_head", "read_row", "read_first"] {
            let (_, statement) =
                script.split_once(&format!("PREPARE {name} (")).unwrap_or_else(|| panic!("{name}: {script}"));
            let statement = statement.split("PREPARE").next().unwrap();
            assert!(statement.contains("outbox_relay_topic"), "{name}: {statement}");
        }
        run(&outbox.client, &script).await;
        run(&outbox.client, "DEALLOCATE ALL").await;
    }
    outbox.drop().await;
}

#[test]
fn payload_option_requires_print_queries() {
    use crate::support::command::{Ended, binary};
    let ended = |args: &[&str]| Ended::of(&mut binary(args));
    ended(&["migrate", "--payload", "bytea"]).fails(2, &["--print-queries"]);
    ended(&["migrate", "--print-queries", "--payload", "xml"]).fails(2, &["json, jsonb, text or bytea"]);
    ended(&["migrate", "--print", "--print-queries"]).fails(2, &["cannot be used with"]);
}
