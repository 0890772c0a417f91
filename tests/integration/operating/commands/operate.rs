//! The everyday commands on a healthy outbox.

use super::admin::Running;
use super::{Setup, kafka};
use crate::support::database::run;
use postgres::access::grants::relay_grants;
use serde_json::Value;

#[tokio::test]
async fn migrate_prints_tries_and_applies_and_is_then_up_to_date() {
    let setup = Setup::empty("migrate_command").await;
    assert!(setup.relay(&["migrate", "--print"]).succeeds().contains("CREATE TABLE \"app\".\"outbox\""));
    assert!(
        setup.relay(&["migrate", "--status"]).succeeds().contains("0001 outbox                   pending")
    );
    assert!(setup.relay(&["migrate", "--dry-run"]).succeeds().contains("applied and rolled back (dry run)"));
    assert!(setup.relay(&["migrate", "--status"]).succeeds().contains("pending"));
    assert!(setup.relay(&["migrate"]).succeeds().contains("0001 outbox                   applied"));
    assert!(setup.relay(&["migrate", "--status"]).succeeds().contains("applied 20"));
    assert!(setup.relay(&["migrate"]).succeeds().contains(": up to date"));
    setup.drop(&[]).await;
}

#[tokio::test]
async fn status_shows_what_waits_and_why() {
    let setup = Setup::migrated("status").await;
    let empty = setup.relay(&["status"]);
    for line in [
        "unsent        0 rows\n",
        "held topics   none",
        "blocked keys  none",
        "dead letters  0",
        "none connected",
    ] {
        assert!(empty.succeeds().contains(line), "{line}: {empty}");
    }
    assert!(!empty.stdout.contains("fix:"), "{empty}");
    setup
        .sql(
            "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, created_at)
             SELECT 'order', i::text, 'X', now() - interval '1 hour' FROM generate_series(1, 3) AS i;
             INSERT INTO app.outbox_hold (topic, reason, error)
             VALUES ('events.order', 'unknown-topic', 'no such topic'), ('events.a', 'stuck', 'silent'),
                    ('events.b', 'rejects-everything', 'refused');
             INSERT INTO app.outbox_blocked_key (aggregate_type, aggregate_id, outbox_id, event_id, topic, reason, error)
             SELECT 'order', 'key ' || i, i, gen_random_uuid(), 'events.c', 'invalid-headers', 'no object'
             FROM generate_series(1, 7) AS i;
             INSERT INTO app.outbox_dead_letter (outbox_id, event_id, aggregate_type, aggregate_id, event_type,
                                                 created_at, topic, reason, error, requeued_at)
             SELECT i, gen_random_uuid(), 'order', '1', 'X', now(), 'events.order', 'record-too-large', 'too large',
                    CASE WHEN i = 3 THEN now() END
             FROM generate_series(1, 3) AS i",
        )
        .await;
    let json: Value = serde_json::from_str(setup.relay(&["status", "--json"]).succeeds()).unwrap();
    assert_eq!(json["table"], "app.outbox", "{json}");
    assert_eq!(json["backlog"]["rows"], 3, "{json}");
    assert_eq!(json["backlog"]["estimated"], false, "{json}");
    assert!(json["backlog"]["oldest_age_seconds"].as_f64().unwrap() >= 3600.0, "{json}");
    let held = json["held_topics"].as_array().unwrap();
    let held = held.iter().find(|held| held["reason"] == "unknown-topic").unwrap();
    assert_eq!(
        (&held["topic"], &held["reason"]),
        (&"events.order".into(), &"unknown-topic".into()),
        "{json}"
    );
    assert!(held["remedy"].as_str().unwrap().contains("create the topic"), "{json}");
    assert_eq!(json["dead_letters"]["rows"], 2, "{json}");
    assert_eq!(json["dead_letters"]["by_reason"][0]["reason"], "record-too-large", "{json}");
    assert_eq!(json["blocked_keys"]["keys"], 7, "{json}");
    let oldest = json["blocked_keys"]["oldest"].as_array().unwrap();
    assert_eq!(
        oldest.iter().map(|key| key["outbox_id"].as_i64().unwrap()).collect::<Vec<_>>(),
        [1, 2, 3, 4, 5]
    );
    assert!(json["size"]["table_bytes"].as_i64().unwrap() > 0, "{json}");

    let text = setup.relay(&["status"]);
    for part in [
        "3 rows, the oldest is 1h",
        "events.order  unknown-topic since 20",
        "no such topic",
        "create the topic",
        "min.insync.replicas",
        "Topics that reject everything",
        "blocked keys  7; their events wait",
        "events.c  key key 1, row 1  invalid-headers since 20",
        "fix: run `outbox-relay blocked-keys dead-letter --config ",
        "and more; to list all, run: outbox-relay blocked-keys list --config ",
        "`outbox-relay dead-letters list --config ",
    ] {
        assert!(text.succeeds().contains(part), "{part}: {text}");
    }
    setup.drop(&[]).await;
}

#[tokio::test]
async fn status_shows_the_transaction_that_holds_vacuum_back() {
    let setup = Setup::migrated("vacuum").await;
    setup.sql("SET application_name = 'the report'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await;
    let json: Value = serde_json::from_str(setup.relay(&["status", "--json"]).succeeds()).unwrap();
    let by = &json["vacuum_held_back_by"];
    assert_eq!(by["what"], "transaction", "{json}");
    assert!(by["name"].as_str().unwrap().contains("the report of postgres (idle in transaction)"), "{json}");
    assert!(by["age_seconds"].is_number(), "{json}");
    setup.sql("COMMIT").await;
    setup.drop(&[]).await;
}

/// 250 unsent rows, which fill the first two batches of 100, then 120 old sent rows, then 30 recent ones.
async fn filled(setup: &Setup) {
    setup
        .sql(
            "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, sent_at)
             SELECT 'order', i::text, 'X', CASE WHEN i <= 250 THEN NULL
                                                WHEN i <= 370 THEN now() - interval '61 minutes'
                                                ELSE now() - interval '59 minutes' END
             FROM generate_series(1, 400) AS i",
        )
        .await;
}

/// The command cannot lock a row that does not exist. It must not blame a relay for that.
#[tokio::test]
async fn reap_without_the_row_that_it_locks_reports_the_remedy() {
    let setup = Setup::migrated("reap_row").await;
    setup.sql("DELETE FROM app.outbox_reaper").await;
    let fix = "INSERT INTO \"app\".\"outbox_reaper\" DEFAULT VALUES;";
    setup.relay(&["reap"]).fails(1, &["has no row", fix]);
    setup.sql(fix).await;
    setup.relay(&["reap"]).succeeds();
    setup.drop(&[]).await;
}

#[tokio::test]
async fn reap_deletes_old_rows_and_keeps_unsent_and_recent_ones() {
    let setup = Setup::migrated("reap").await;
    filled(&setup).await;
    let dry = setup.relay(&["reap", "--dry-run"]);
    assert_eq!(dry.succeeds(), "app.outbox: 120 rows would be deleted, sent more than 1h ago\n");
    assert_eq!(setup.number("SELECT count(*) FROM app.outbox").await, 400);
    let reaped = setup.relay(&["reap"]);
    assert_eq!(reaped.succeeds(), "app.outbox: 120 rows deleted, sent more than 1h ago\n");
    assert_eq!(setup.number("SELECT count(*) FROM app.outbox WHERE sent_at IS NULL").await, 250);
    assert_eq!(setup.number("SELECT count(*) FROM app.outbox").await, 280);
    assert!(setup.relay(&["reap"]).succeeds().contains(": 0 rows deleted"));
    setup.drop(&[]).await;
}

#[tokio::test]
async fn running_relay_reaps_rows_behind_those_of_a_held_topic() {
    let setup = Setup::migrated("reap_held").await;
    setup
        .sql(
            "INSERT INTO app.outbox_hold (topic, reason, error, probe_at)
             VALUES ('events.order', 'unknown-topic', 'no such topic', now() + interval '1 hour')",
        )
        .await;
    filled(&setup).await;
    let relay = Running::start(&setup);
    relay.until("GET /metrics", |_, text| text.contains("\noutbox_relay_reaped_total 120\n")).await;
    assert_eq!(setup.number("SELECT count(*) FROM app.outbox WHERE sent_at IS NULL").await, 250);
    drop(relay);
    setup.drop(&[]).await;
}

#[tokio::test]
async fn reap_skips_locked_rows_and_needs_only_the_printed_grants() {
    let setup = Setup::migrated("reap_locked").await;
    filled(&setup).await;
    let (role, _) = setup.database.connect_as_new_role().await;
    run(&setup.client, &relay_grants(&"app.outbox".parse().unwrap(), &role)).await;
    setup.sql(&format!("ALTER ROLE {role} SET default_transaction_read_only = on")).await;
    setup.configure(&setup.database.url().replace("postgres@", &format!("{role}@")), &kafka());
    setup.sql("BEGIN; SELECT FROM app.outbox WHERE id BETWEEN 251 AND 260 FOR UPDATE").await;
    assert!(setup.relay(&["reap"]).succeeds().contains(": 110 rows deleted"));
    setup.sql("COMMIT").await;
    assert!(setup.relay(&["reap"]).succeeds().contains(": 10 rows deleted"));
    setup.drop(&[&role]).await;
}

#[tokio::test]
async fn check_config_reports_the_findings_of_doctor() {
    let setup = Setup::migrated("check_topics").await;
    let none = setup.relay(&["check-config", "--connect"]);
    for line in [
        "configuration  ",
        "relay.toml is valid",
        "postgres       connected, version",
        "schema         app.outbox",
        "topics         none checked",
        "doctor         no problems found",
    ] {
        assert!(none.succeeds().contains(line), "{line}: {none}");
    }
    let kind = format!("none_{}", std::process::id());
    setup
        .sql(&format!(
            "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('{kind}', '1', 'X'), ('a b', '1', 'X')"
        ))
        .await;
    setup.relay(&["check-config", "--connect"]).fails(
        78,
        &[
            &format!("error          topic events.{kind}"),
            &format!("kafka-topics.sh --bootstrap-server {} --create --topic events.{kind}", kafka()),
            &format!("run: outbox-relay doctor --config {}", setup.config().display()),
            "events.a b",
            "doctor         errors: 1, warnings: ",
        ],
    );
    // An event that can never be sent does not prevent a relay from starting.
    setup.sql(&format!("DELETE FROM app.outbox WHERE aggregate_type = '{kind}'")).await;
    let bad = setup.relay(&["check-config", "--connect"]);
    assert!(bad.succeeds().contains("events.a b"), "{bad}");
    setup.drop(&[]).await;
}
