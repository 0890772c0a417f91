//! The optional column `topic` of the outbox: an event can name its topic, but only an allowed one.

use serde_json::{Value, json};
use std::ops::Range;

use crate::support::command::Ended;
use crate::support::consumer;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::relay::Relay;
use crate::support::wait::{STALLED, wait_until};

/// An outbox with the column and these topics, of which `order` is the one of the template.
async fn with_column(test: &str, topics: &[&str]) -> Outbox {
    let mut outbox = Outbox::without_topics(test).await;
    for topic in topics {
        outbox.create_topic(topic, 3).await;
    }
    run(&outbox.client, "ALTER TABLE app.outbox ADD COLUMN topic text").await;
    outbox.roles.grant_topic_column(&outbox.client, &"app.outbox".parse().unwrap()).await;
    outbox
}

/// The setting for these topics and prefixes, without the prefix of the outbox.
fn allowing(outbox: &Outbox, relay: Relay, allowed: &[&str]) -> Relay {
    let allowed: Vec<String> = allowed.iter().map(|topic| outbox.topic(topic)).collect();
    relay.set("outbox", "topic_allow", allowed.join(", "))
}

fn operator(outbox: &Outbox, allowed: &[&str], args: &[&str]) -> Ended {
    allowing(outbox, outbox.operator(), allowed).command(args)
}

/// Events of the type `order` that name these topics in turn; `order` stands for events that name none.
async fn insert(outbox: &Outbox, topics: &[&str], keys: i64, numbers: Range<i64>) {
    let sql = "WITH event AS (
                   INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload, topic)
                   SELECT 'order', 'order-' || n / cardinality($1::text[]) % $2, 'Numbered', json_build_object('seq', n),
                          $5::text || nullif($1[(1 + n % cardinality($1))::integer], 'order')
                   FROM generate_series($3::bigint, $4::bigint - 1) AS n
                   ORDER BY n
                   RETURNING event_id, coalesce(substr(topic, length($5) + 1), 'order') AS kind, aggregate_id, payload
               )
               INSERT INTO app.ledger (event_id, kind, key, seq, value)
               SELECT event_id, kind, aggregate_id, (payload ->> 'seq')::bigint, payload::text FROM event";
    let (topics, prefix) = (topics.to_vec(), outbox.topic(""));
    outbox.client.execute(sql, &[&topics, &keys, &numbers.start, &numbers.end, &prefix]).await.unwrap();
}

async fn unsent_topics(outbox: &Outbox) -> Vec<Option<String>> {
    let sql = "SELECT DISTINCT topic FROM app.outbox WHERE sent_at IS NULL ORDER BY topic";
    outbox.client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// The reason, the topic and the column of each dead letter.
async fn dead_letters(outbox: &Outbox) -> Vec<(String, String, Option<String>)> {
    let sql = "SELECT reason, topic, row_topic FROM app.outbox_dead_letter ORDER BY outbox_id";
    let rows = outbox.client.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

#[tokio::test]
async fn named_topic_wins_over_the_template_and_each_key_keeps_its_order() {
    let topics = ["order", "audit.order", "billing"];
    for (on_sent, prepared) in [("mark", true), ("delete", true), ("mark", false)] {
        let outbox = with_column("column_wins", &topics).await;
        insert(&outbox, &topics, 20, 0..3_000).await;
        let relay =
            allowing(&outbox, outbox.relay(), &["audit.*", "billing"]).set("outbox", "on_sent", on_sent);
        let mut relay = relay.set("postgres", "prepared_statements", prepared).start().await;
        outbox.wait_until_drained(STALLED).await;
        insert(&outbox, &topics, 20, 3_000..3_600).await; // read by flows
        outbox.wait_until_drained(STALLED).await;
        assert!(relay.stop().await.success(), "{}", relay.log());
        assert_eq!(outbox.check().await.assert_exact().records, 3_600);
        outbox.drop().await;
    }
}

#[tokio::test]
async fn held_or_paused_named_topic_delays_no_other_topic_of_the_same_key() {
    let allowed = ["audit.*", "billing"];
    let mut outbox = with_column("column_held", &["order", "billing"]).await;
    let billing = outbox.topic("billing");
    for topic in ["other", "billing"] {
        operator(&outbox, &allowed, &["pause", "--topic", topic]).fails(2, &["cannot have the topic"]);
    }
    operator(&outbox, &allowed, &["pause", "--topic", &billing]).succeeds();
    insert(&outbox, &["order", "audit.missing", "billing"], 20, 0..3_000).await;
    let mut relay = allowing(&outbox, outbox.relay(), &allowed).start().await;
    wait_until("only held and paused events wait", STALLED, async || outbox.unsent().await == 2_000).await;
    insert(&outbox, &["order", "audit.missing", "billing"], 20, 3_000..3_060).await; // read by a flow
    wait_until("only held and paused events wait", STALLED, async || outbox.unsent().await == 2_040).await;
    let waiting = [outbox.topic("audit.missing"), billing.clone()].map(Some);
    assert_eq!(unsent_topics(&outbox).await, waiting);
    assert_eq!(outbox.holds().await, [(outbox.topic("audit.missing"), "unknown-topic".to_owned())]);
    let status: Value =
        serde_json::from_str(&operator(&outbox, &allowed, &["status", "--json"]).stdout).unwrap();
    for waiting in ["paused", "of_held_topics"] {
        assert!(status["backlog"]["first"][waiting].as_i64() > Some(0), "{waiting}: {status:#}");
    }
    operator(&outbox, &allowed, &["doctor", "--json"])
        .fails(1, &["topic-missing", &outbox.topic("audit.missing")]);

    // The topic may no longer be allowed.
    operator(&outbox, &["audit.*"], &["resume", "--topic", &billing]).succeeds();
    wait_until("only held events wait", STALLED, async || outbox.unsent().await == 1_020).await;
    outbox.create_topic("audit.missing", 3).await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    assert_eq!(outbox.check().await.assert_exact().records, 3_060);
    outbox.drop().await;
}

#[tokio::test]
async fn event_that_names_another_topic_is_rejected_and_requeued_once_the_topic_is_allowed() {
    for on_rejected in ["dead-letter", "block-key"] {
        let outbox = with_column("column_rejected", &["order", "secret", "billing"]).await;
        insert(&outbox, &["order", "secret"], 2, 0..4).await;
        let doctor = operator(&outbox, &["billing"], &["doctor", "--json"]);
        doctor.fails(1, &["event-topic-not-allowed", &outbox.topic("secret")]);
        assert!(!doctor.stdout.contains("topic-missing"), "{doctor}");

        // Without the setting, no topic is allowed. Both topics exist.
        let rejecting = |relay: Relay| relay.set("outbox", "on_rejected", on_rejected);
        let mut relay = rejecting(outbox.relay()).start().await;
        let kept = if on_rejected == "block-key" { 2 } else { 0 };
        wait_until("events that name no topic are sent", STALLED, async || outbox.unsent().await == kept)
            .await;
        if kept > 0 {
            operator(&outbox, &["billing"], &["blocked-keys", "dead-letter", "--all"]).succeeds();
        }
        assert!(relay.stop().await.success(), "{}", relay.log());
        assert!(relay.log().contains("topic_allow_unset"), "{}", relay.log());
        let secret = outbox.topic("secret");
        let dead = ("topic-not-allowed".to_owned(), secret.clone(), Some(secret.clone()));
        assert_eq!(dead_letters(&outbox).await, [dead.clone(), dead]);
        let clear = format!("the event names the topic {secret}, but [outbox] topic_allow is not set");
        let sql = "SELECT count(*) FROM app.outbox_dead_letter WHERE error = $1";
        assert_eq!(outbox.client.query_one(sql, &[&clear]).await.unwrap().get::<_, i64>(0), 2);
        let stored = |topic: &str| outbox.cluster.stored(&outbox.topic(topic));
        assert_eq!((stored("order"), stored("secret")), (2, 0));

        // An event that is requeued too early is rejected again.
        operator(&outbox, &["billing"], &["dead-letters", "requeue", "--all", "--limit", "1"]).succeeds();
        allowing(&outbox, outbox.relay(), &["billing"]).command(&["run", "--once"]).succeeds();
        assert_eq!((outbox.dead_letters().await, stored("secret")), (3, 0));
        operator(&outbox, &["secret"], &["dead-letters", "requeue", "--all"]).succeeds();
        allowing(&outbox, outbox.relay(), &["secret"]).command(&["run", "--once"]).succeeds();
        assert_eq!((outbox.dead_letters().await, stored("order"), stored("secret")), (3, 2, 2));
        assert_eq!(consumer::read_all(&[secret]).await.len(), 2);
        outbox.drop().await;
    }
}

/// Without the column, it would be published to the topic of the template.
#[tokio::test]
async fn dead_letter_that_names_its_topic_is_not_requeued_without_the_column() {
    let outbox = with_column("column_dropped", &["order", "secret"]).await;
    insert(&outbox, &["order", "secret"], 2, 0..4).await;
    outbox.relay().command(&["run", "--once"]).succeeds();
    assert_eq!(outbox.dead_letters().await, 2);
    run(&outbox.client, "ALTER TABLE app.outbox DROP COLUMN topic").await;
    for args in [&["--all"][..], &["--all", "--dry-run"]] {
        let ended = outbox.operator().command(&[&["dead-letters", "requeue"], args].concat());
        ended.fails(1, &["the events of 2 dead letters name their topic", "Nothing was requeued"]);
    }
    assert_eq!(outbox.unsent().await, 0);

    // An older one without a topic can be requeued.
    let forget = "UPDATE app.outbox_dead_letter SET row_topic = NULL WHERE id = (SELECT min(id) FROM app.outbox_dead_letter)";
    run(&outbox.client, forget).await;
    outbox.operator().command(&["dead-letters", "requeue", "--all", "--limit", "1"]).succeeds();
    let ended = outbox.operator().command(&["dead-letters", "requeue", "--all", "--limit", "1"]);
    ended.fails(1, &["the events of 1 dead letter name their topic", "Nothing was requeued"]);
    assert_eq!(outbox.unsent().await, 1);
    outbox.drop().await;
}

#[tokio::test]
async fn invalid_column_or_setting_ends_the_start_with_one_message() {
    let outbox = Outbox::create("column_check", 1).await;
    let run_once = |relay: Relay| relay.command(&["run", "--once"]);
    for ended in [
        run_once(allowing(&outbox, outbox.relay(), &["billing"])),
        operator(&outbox, &["billing"], &["pause"]),
        operator(&outbox, &["billing"], &["check-config", "--connect"]),
        operator(&outbox, &["billing"], &["doctor"]),
    ] {
        assert!(ended.code != 0 && !ended.stderr.contains("panicked"), "{ended}");
        let said = format!("{}{}", ended.stdout, ended.stderr);
        assert_eq!(said.matches("topic_allow is set").count(), 1, "{ended}");
        assert!(said.contains("column topic") && said.contains("ADD COLUMN topic text;"), "{ended}");
    }
    run(&outbox.client, "ALTER TABLE app.outbox ADD COLUMN topic integer").await;
    run_once(outbox.relay()).fails(78, &["column topic: the type is integer, not text"]);
    run(&outbox.client, "ALTER TABLE app.outbox ALTER COLUMN topic TYPE text").await;
    run_once(allowing(&outbox, outbox.relay(), &["billing"])).succeeds();
    operator(&outbox, &["billing"], &["dead-letters", "requeue", "--all"])
        .fails(78, &["GRANT INSERT (topic) ON \"app\".\"outbox\" TO"]);
    outbox.roles.grant_topic_column(&outbox.client, &"app.outbox".parse().unwrap()).await;
    outbox.operator().command(&["dead-letters", "requeue", "--all"]).succeeds();
    run_once(outbox.relay().set("outbox", "topic_allow", "*"))
        .fails(78, &["topic_allow: a prefix needs at least one character before the *"]);
    outbox.drop().await;
}

#[tokio::test]
async fn verify_and_replay_select_named_topics() {
    let (topics, allowed) = (["order", "billing"], ["billing"]);
    let outbox = with_column("column_replay", &topics).await;
    insert(&outbox, &topics, 5, 0..100).await;
    let once = || allowing(&outbox, outbox.relay(), &allowed).command(&["run", "--once"]);
    once().succeeds();
    let json = |args: &[&str]| -> Value {
        let ended = operator(&outbox, &allowed, args);
        serde_json::from_str(ended.succeeds()).unwrap_or_else(|error| panic!("{error}: {ended}"))
    };
    let verified = json(&["verify", "--json"]);
    assert_eq!((&verified["events"], &verified["broken"]), (&json!(100), &json!(0)), "{verified:#}");
    let billing = outbox.topic("billing");
    let replayed = json(&["replay", "--json", "--topic", &billing, "--since", "1h"]);
    assert_eq!(replayed["topics"], json!({ &billing: 50 }), "{replayed}");
    assert_eq!(unsent_topics(&outbox).await, [Some(billing.clone())]);
    once().succeeds();
    let stored = |topic: &str| outbox.cluster.stored(&outbox.topic(topic));
    assert_eq!((stored("order"), stored("billing")), (50, 100));

    let copy = ["replay", "--since", "1h", "--to-topic", &billing];
    operator(&outbox, &allowed, &copy).fails(2, &["cannot be copied to the same topic"]);
    let order = outbox.topic("order");
    let copied = json(&[&copy[..], &["--json", "--topic", &order]].concat());
    assert_eq!(copied["topics"], json!({ &order: 50 }), "{copied}");
    assert_eq!((stored("order"), stored("billing")), (50, 150));

    // Without the setting, the events that name a topic are not judged by the topic of the template.
    let verified = outbox.operator().command(&["verify", "--json"]);
    let verified: Value = serde_json::from_str(verified.succeeds()).unwrap();
    assert_eq!(
        (&verified["broken"], &verified["not_judged"]["unpublishable"]),
        (&json!(0), &json!(50)),
        "{verified:#}"
    );
    outbox.drop().await;
}
