//! Topics that depend on the event type: events of one aggregate go to several topics, and a held or paused topic delays only
//! its own events.

use serde_json::{Value, json};

use crate::support::consumer;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::relay::Relay;
use crate::support::wait::{STALLED, wait_until};

/// Events of one aggregate type with these event types in turn, and of these keys in turn. The ledger has the topic of each
/// event, without the prefix.
async fn insert(outbox: &Outbox, types: &[&str], keys: i64, numbers: std::ops::Range<i64>) {
    let sql = "WITH event AS (
                   INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
                   SELECT 'order', 'order-' || n / cardinality($1::text[]) % $2, $1[(1 + n % cardinality($1))::integer],
                          json_build_object('seq', n)
                   FROM generate_series($3::bigint, $4::bigint - 1) AS n
                   ORDER BY n
                   RETURNING event_id, aggregate_type, aggregate_id, event_type, payload
               )
               INSERT INTO app.ledger (event_id, kind, key, seq, value)
               SELECT event_id, aggregate_type || '.' || event_type, aggregate_id, (payload ->> 'seq')::bigint, payload::text
               FROM event";
    let types: Vec<&str> = types.to_vec();
    outbox.client.execute(sql, &[&types, &keys, &numbers.start, &numbers.end]).await.unwrap();
}

/// The settings for topics such as `order.Paid`.
fn by_event_type(outbox: &Outbox, relay: Relay) -> Relay {
    relay.set("outbox", "topic", outbox.topic("{aggregate_type}.{event_type}"))
}

fn operator(outbox: &Outbox, args: &[&str]) -> crate::support::command::Ended {
    by_event_type(outbox, outbox.operator()).command(args)
}

/// An outbox with a topic for each of these event types.
async fn with_topics(test: &str, types: &[&str]) -> Outbox {
    let mut outbox = Outbox::without_topics(test).await;
    for event_type in types {
        outbox.create_topic(&format!("order.{event_type}"), 3).await;
    }
    outbox
}

async fn unsent_types(outbox: &Outbox) -> Vec<String> {
    let sql = "SELECT DISTINCT event_type FROM app.outbox WHERE sent_at IS NULL ORDER BY event_type";
    outbox.client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn each_event_goes_to_the_topic_of_its_event_type_in_the_order_of_its_key() {
    let types = ["Placed", "Paid", "Shipped"];
    for (on_sent, prepared) in [("mark", true), ("delete", true), ("mark", false)] {
        let outbox = with_topics("event_types", &types).await;
        insert(&outbox, &types, 20, 0..3_000).await;
        let relay = by_event_type(&outbox, outbox.relay()).set("outbox", "on_sent", on_sent);
        let mut relay = relay.set("postgres", "prepared_statements", prepared).start().await;
        outbox.wait_until_drained(STALLED).await;
        insert(&outbox, &types, 20, 3_000..3_600).await; // read by flows
        outbox.wait_until_drained(STALLED).await;
        assert!(relay.stop().await.success(), "{}", relay.log());
        assert_eq!(outbox.check().await.assert_exact().records, 3_600);
        outbox.drop().await;
    }
}

#[tokio::test]
async fn held_topic_delays_no_other_topic_of_the_same_aggregate_and_is_released() {
    let mut outbox = with_topics("event_held", &["Placed", "Paid"]).await;
    let types = ["Placed", "Missing", "Paid"];
    insert(&outbox, &types, 20, 0..3_000).await;
    let relay = by_event_type(&outbox, outbox.relay());
    let mut relay = relay.start().await;
    wait_until("only events of the missing topic wait", STALLED, async || outbox.unsent().await == 1_000)
        .await;
    assert_eq!(unsent_types(&outbox).await, ["Missing"]);
    assert_eq!(outbox.holds().await, [(outbox.topic("order.Missing"), "unknown-topic".to_owned())]);
    // While the topic is held, new events of its keys are published.
    insert(&outbox, &types, 20, 3_000..3_060).await;
    wait_until("new events of the other topics are sent", STALLED, async || outbox.unsent().await == 1_020)
        .await;
    assert_eq!(unsent_types(&outbox).await, ["Missing"]);
    let status: Value = serde_json::from_str(&operator(&outbox, &["status", "--json"]).stdout).unwrap();
    assert_eq!(status["held_topics"][0]["topic"], json!(outbox.topic("order.Missing")), "{status:#}");
    let found = operator(&outbox, &["doctor", "--json"]);
    found.fails(1, &["topic-missing", &outbox.topic("order.Missing")]);

    outbox.create_topic("order.Missing", 3).await;
    outbox.wait_until_drained(STALLED).await;
    wait_until("the topic is released", STALLED, async || outbox.holds().await.is_empty()).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    assert_eq!(outbox.check().await.assert_exact().records, 3_060);
    outbox.drop().await;
}

#[tokio::test]
async fn paused_topic_delays_no_other_topic_of_the_same_aggregate() {
    let types = ["Placed", "Paid"];
    let outbox = with_topics("event_paused", &types).await;
    let paid = outbox.topic("order.Paid");
    for topic in ["order.Paid", &outbox.topic("order"), &outbox.topic("order.")] {
        operator(&outbox, &["pause", "--topic", topic]).fails(2, &["cannot have the topic", "{event_type}"]);
    }
    operator(&outbox, &["pause", "--topic", &paid]).succeeds();
    insert(&outbox, &types, 10, 0..1_000).await;
    let mut relay = by_event_type(&outbox, outbox.relay()).start().await;
    wait_until("only paused events wait", STALLED, async || outbox.unsent().await == 500).await;
    insert(&outbox, &types, 10, 1_000..1_100).await; // read by a flow
    wait_until("only paused events wait", STALLED, async || outbox.unsent().await == 550).await;
    assert_eq!(unsent_types(&outbox).await, ["Paid"]);
    let status: Value = serde_json::from_str(&operator(&outbox, &["status", "--json"]).stdout).unwrap();
    assert!(status["backlog"]["first"]["paused"].as_i64() > Some(0), "{status:#}");
    assert_eq!(status["backlog"]["first"]["of_held_topics"], json!(0), "{status:#}");
    operator(&outbox, &["resume", "--topic", &paid]).succeeds();
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    assert_eq!(outbox.check().await.assert_exact().records, 1_100);
    outbox.drop().await;
}

/// Rows of two aggregate types share the topics, so a key has one order for both.
#[tokio::test]
async fn blocked_or_paused_key_waits_for_every_aggregate_type() {
    let mut outbox = Outbox::without_topics("event_keys").await;
    outbox.create_topic("Placed", 1).await;
    let by_event_type = |relay: Relay| {
        let relay = relay.set("outbox", "topic", outbox.topic("{event_type}"));
        relay.set("outbox", "on_rejected", "block-key")
    };
    let insert = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, headers)
                  SELECT CASE n % 2 WHEN 0 THEN 'order' ELSE 'customer' END, 'k' || n % 3, 'Placed',
                         CASE n WHEN 7 THEN '[]'::jsonb END
                  FROM generate_series(1, 60) AS n";
    by_event_type(outbox.operator()).command(&["pause", "--key", "order", "k2"]).succeeds();
    run(&outbox.client, insert).await;
    let mut relay = by_event_type(outbox.relay()).start().await;
    // Of k1, rows 1 and 4 precede the bad row 7. All rows of k2 wait, and none of k0.
    wait_until("the other events are sent", STALLED, async || outbox.unsent().await == 38).await;
    let waiting = "SELECT aggregate_id, count(*), count(DISTINCT aggregate_type), min(id)
                   FROM app.outbox WHERE sent_at IS NULL GROUP BY 1 ORDER BY 1";
    let rows = outbox.client.query(waiting, &[]).await.unwrap();
    let rows: Vec<(String, i64, i64, i64)> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect();
    assert_eq!(rows, [("k1".to_owned(), 18, 2, 7), ("k2".to_owned(), 20, 2, 2)]);

    run(&outbox.client, "UPDATE app.outbox SET headers = NULL").await;
    by_event_type(outbox.operator()).command(&["blocked-keys", "retry", "--all"]).succeeds();
    by_event_type(outbox.operator()).command(&["resume", "--all"]).succeeds();
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    assert_eq!(consumer::read_all(&outbox.topics()).await.len(), 60);
    outbox.drop().await;
}

/// The read leaves out the contents of an event that is too large, but not what determines its topic.
#[tokio::test]
async fn rejected_events_have_the_topic_of_their_event_type() {
    let outbox = with_topics("event_rejected", &["Large"]).await;
    run(
        &outbox.client,
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
         VALUES ('order', '1', 'Large', to_json(repeat('x', 2000000))),
                ('order', '1', 'not a topic', NULL),
                ('order', '1', repeat('L', 2000000), NULL)",
    )
    .await;
    let mut relay = by_event_type(&outbox, outbox.relay()).start().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    let sql = "SELECT left(topic, 60), reason FROM app.outbox_dead_letter ORDER BY outbox_id";
    let rows = outbox.client.query(sql, &[]).await.unwrap();
    let dead: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let long: String = outbox.topic(&format!("order.{}", "L".repeat(60))).chars().take(60).collect();
    let invalid = "invalid-topic-name".to_owned();
    let expected = [
        (outbox.topic("order.Large"), "record-too-large".to_owned()),
        (outbox.topic("order.not a topic"), invalid.clone()),
        (long, invalid),
    ];
    assert_eq!(dead, expected);
    // With another template, they are valid.
    let listed = operator(&outbox, &["dead-letters", "list", "--topic", &outbox.topic("order.not a topic")]);
    assert_eq!(listed.succeeds().matches("invalid-topic-name").count(), 1, "{listed}");
    let requeue = ["dead-letters", "requeue", "--topic", &outbox.topic("order.not a topic")];
    operator(&outbox, &requeue).succeeds();
    let relay = outbox.relay().set("outbox", "topic", outbox.topic("order.Large"));
    relay.command(&["run", "--once"]).succeeds();
    assert_eq!(outbox.unsent().await, 0);
    assert_eq!(consumer::read_all(&outbox.topics()).await.len(), 1);
    outbox.drop().await;
}

#[tokio::test]
async fn verify_and_replay_select_topics_by_event_type() {
    let types = ["Placed", "Paid"];
    let outbox = with_topics("event_replay", &types).await;
    insert(&outbox, &types, 5, 0..100).await;
    let once = || by_event_type(&outbox, outbox.relay()).command(&["run", "--once"]);
    once().succeeds();
    let json = |args: &[&str]| -> Value {
        let ended = operator(&outbox, args);
        serde_json::from_str(ended.succeeds()).unwrap_or_else(|error| panic!("{error}: {ended}"))
    };
    let verified = json(&["verify", "--json"]);
    assert_eq!((&verified["events"], &verified["broken"]), (&json!(100), &json!(0)), "{verified:#}");

    let paid = outbox.topic("order.Paid");
    let replayed = json(&["replay", "--json", "--topic", &paid, "--since", "1h"]);
    assert_eq!(replayed["topics"], json!({ &paid: 50 }), "{replayed}");
    assert_eq!(unsent_types(&outbox).await, ["Paid"]);
    once().succeeds();
    let stored = |topic: &str| outbox.cluster.stored(&outbox.topic(topic));
    assert_eq!((stored("order.Placed"), stored("order.Paid")), (50, 100));
    let verified = json(&["verify", "--json", "--topic", &paid]);
    assert_eq!(verified["broken"], json!(0), "{verified:#}");
    outbox.drop().await;
}
