//! A relay with renamed columns, and every command of an operator, each with the privileges that `--print-roles` grants.

use serde_json::{Value, json};

use super::world::{World, table};
use crate::support::database::run;
use crate::support::roles::Roles;
use crate::support::topics;
use crate::support::wait::{STALLED, wait_until};

#[tokio::test]
async fn adopted_table_is_published_in_order_with_both_ways_to_settle() {
    for (on_sent, prepared) in [("mark", true), ("delete", true), ("mark", false)] {
        let mut world = World::adopted("adopted").await;
        world.create_topic("order", 3, &[]).await;
        world.insert("order", 0..3_000, 1).await;
        let relay = world.relay().set("outbox", "on_sent", on_sent);
        let mut relay = relay.set("postgres", "prepared_statements", prepared).start().await;
        world.wait_for_unsent(0).await;
        world.insert("order", 3_000..3_600, 1).await; // read by flows
        world.insert("order", 3_600..3_601, 2_000).await; // a large event ends the cheap reads
        world.wait_for_unsent(0).await;
        assert!(relay.stop().await.success(), "{}", relay.log());
        assert!(!relay.log().contains(" ERROR "), "{}", relay.log());
        let left = if on_sent == "mark" { 3_601 } else { 0 };
        assert_eq!(world.count("SELECT count(*) FROM app.events").await, left, "{on_sent}");
        assert_eq!(world.check().await.assert_exact().records, 3_601);
        world.drop().await;
    }
}

/// A writer of the printed role. The function has the arguments of a standard outbox.
#[tokio::test]
async fn writers_insert_with_the_function_or_into_the_table() {
    let mut world = World::adopted("adopted_writer").await;
    world.create_topic("order", 1, &[]).await;
    let (role, writer) = world.database.connect_as_new_role().await;
    run(&world.client, &format!("GRANT {} TO {role}", world.roles.as_ref().unwrap().writer())).await;
    let enqueue = "SELECT app.events_enqueue('order', '42', 'Placed', '{\"total\":  12}', '{\"a\": \"b\"}')";
    let event_id: uuid::Uuid = writer.query_one(enqueue, &[]).await.unwrap().get(0);
    run(
        &writer,
        "INSERT INTO app.events (topic, \"Key\", type, \"user\") VALUES ('order', '42', 'Paid', '{}')
         RETURNING \"seq no\", id",
    )
    .await;
    let mut relay = world.relay().start().await;
    world.wait_for_unsent(0).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    let records = crate::support::consumer::read_all_of(&world.cluster, &[world.topic("order")]).await;
    let values: Vec<_> = records.iter().map(|record| record.value.as_deref().unwrap()).collect();
    assert_eq!(values, [&b"{\"total\":  12}"[..], b"{}"]);
    assert_eq!((records[0].event_id(), records[0].header("a")), (Some(event_id), Some(&b"b"[..])));
    for forbidden in ["SELECT \"user\" FROM app.events", "UPDATE app.events SET \"published at\" = now()"] {
        assert!(writer.batch_execute(forbidden).await.is_err(), "{forbidden}");
    }
    drop(writer);
    world
        .database
        .clone()
        .connect()
        .await
        .batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await
        .unwrap();
    world.drop().await;
}

/// PostgreSQL requires the privilege to read every column that a statement names, even in a subquery.
#[tokio::test]
async fn monitoring_runs_status_and_reads_no_payload() {
    let world = World::adopted("adopted_monitor").await;
    world.insert("order", 0..3, 1).await;
    let (grafana, client) = world.database.connect_as_new_role().await;
    run(&world.client, &format!("GRANT {} TO {grafana}", world.roles.as_ref().unwrap().monitor())).await;
    assert!(client.batch_execute("SELECT \"user\" FROM app.events").await.is_err());
    for (args, says) in [
        (&["status"][..], "unsent        3 rows"),
        (&["status", "--json"], "\"backlog\": {\n    \"rows\": 3"),
    ] {
        let monitor = world.owner().set("postgres", "url", world.database.url_of(&grafana));
        let status = monitor.command(args);
        assert!(status.succeeds().contains(says), "{status}");
    }
    drop(client);
    run(&world.client, &format!("DROP OWNED BY {grafana}; DROP ROLE {grafana}")).await;
    world.drop().await;
}

/// The old key of the table, for which the application or an ORM chose the numbers, still has its sequence.
#[tokio::test]
async fn sequences_of_other_columns_are_granted() {
    let table_sql = "CREATE SCHEMA app;
        CREATE TABLE app.events (id bigserial PRIMARY KEY, event_id uuid NOT NULL DEFAULT gen_random_uuid() UNIQUE,
                                 aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL, payload json,
                                 number bigint GENERATED ALWAYS AS IDENTITY (CACHE 1))";
    let names = [("id", "number")];
    let mut world = World::with("adopted_sequences", table_sql, &names).await;
    world.migrate(&["--adopt", "app.events", "--apply"]).succeeds();
    world.roles = Some(Roles::create(&world.client, &table(&names)).await);
    let roles = world.roles.as_ref().unwrap();
    for (role, insert) in [
        (roles.writer(), "SELECT app.events_enqueue('order', '42', 'Placed', '{}', '{}')"),
        (roles.operator(), "INSERT INTO app.events (event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at)
                            VALUES (gen_random_uuid(), 'order', '42', 'Placed', '{}', NULL, now())"),
    ] {
        run(&world.client, &format!("SET ROLE {role}; {insert}; RESET ROLE")).await;
    }
    world.drop().await;
}

/// A topic for records of up to 20 kB, and one event of 64 kB in the middle of its key.
async fn with_a_large_event(test: &str) -> World {
    let mut world = World::adopted(test).await;
    world.create_topic("order", 1, &[("max.message.bytes", "20000")]).await;
    world.insert("order", 0..100, 1).await;
    world.insert("order", 107..108, 2_000).await;
    world.insert("order", 120..200, 1).await;
    world
}

#[tokio::test]
async fn rejected_event_becomes_a_dead_letter_and_is_requeued_unchanged() {
    let world = with_a_large_event("adopted_dead").await;
    let mut relay = world.relay().start().await;
    world.wait_for_unsent(0).await;
    let list = world.operator().command(&["dead-letters", "list", "--json"]);
    let letter: Value =
        serde_json::from_str(list.succeeds()).unwrap_or_else(|error| panic!("{error}: {list}"));
    assert_eq!(letter.to_string().matches("record-too-large").count(), 1, "{letter:#}");
    topics::alter(&world.topic("order"), "max.message.bytes", "1000000").await;
    let requeued = world.operator().command(&["dead-letters", "requeue", "--all"]);
    assert_eq!(requeued.succeeds(), "app.events: 1 dead letter requeued\n");
    wait_until("the requeued event is sent", STALLED, async || {
        world.unsent().await == 0 && world.count("SELECT count(*) FROM app.event").await == 181
    })
    .await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    let report = world.check().await;
    // The requeued event follows the later ones of its key.
    assert_eq!(
        (report.records, report.lost.len(), report.altered.len(), report.duplicates),
        (181, 0, 0, 0),
        "{report}"
    );
    assert_eq!(report.reordered.len(), 1, "{report}");
    world.drop().await;
}

#[tokio::test]
async fn blocked_key_is_retried_in_order_or_moved_to_the_dead_letters() {
    for resolve in ["retry", "dead-letter"] {
        let world = with_a_large_event("adopted_blocked").await;
        let mut relay = world.relay().set("outbox", "on_rejected", "block-key").start().await;
        world.wait_for_unsent(5).await;
        let listed = world.operator().command(&["blocked-keys", "list"]);
        assert!(listed.succeeds().contains("order-7"), "{listed}");
        let status = world.operator().command(&["status"]);
        assert!(status.stdout.contains("blocked keys  1;"), "{status}");
        if resolve == "retry" {
            topics::alter(&world.topic("order"), "max.message.bytes", "1000000").await;
        }
        let done = world.operator().command(&["blocked-keys", resolve, "--all"]);
        assert!(done.succeeds().starts_with("app.events: 1 rejected event"), "{done}");
        world.wait_for_unsent(0).await;
        assert!(relay.stop().await.success(), "{}", relay.log());
        let report = world.check().await;
        let lost = usize::from(resolve == "dead-letter");
        assert_eq!(
            (report.lost.len(), report.reordered.len(), report.altered.len()),
            (lost, 0, 0),
            "{report}"
        );
        assert_eq!(world.count("SELECT count(*) FROM app.events_dead_letter").await, lost as i64);
        world.drop().await;
    }
}

#[tokio::test]
async fn held_topic_is_released_when_it_exists() {
    let mut world = World::adopted("adopted_held").await;
    world.create_topic("order", 1, &[]).await;
    world.insert("missing", 0..50, 1).await;
    world.insert("order", 0..50, 1).await;
    let mut relay = world.relay().start().await;
    world.wait_for_unsent(50).await;
    wait_until("the topic is held", STALLED, async || {
        world.count("SELECT count(*) FROM app.events_hold").await == 1
    })
    .await;
    world.create_topic("missing", 1, &[]).await;
    world.wait_for_unsent(0).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    world.check().await.assert_exact();
    world.drop().await;
}

#[tokio::test]
async fn pauses_stop_everything_a_topic_or_a_key() {
    let mut world = World::adopted("adopted_paused").await;
    world.create_topic("order", 1, &[]).await;
    world.create_topic("user", 1, &[]).await;
    let topic = world.topic("order");
    let scopes: [(&[&str], i64); 3] =
        [(&[], 80), (&["--topic", &topic], 40), (&["--key", "order", "order-7"], 2)];
    for (round, (scope, waiting)) in (0..).zip(scopes) {
        world.operator().command(&[&["pause"], scope].concat()).succeeds();
        let numbers = round * 40..(round + 1) * 40;
        world.insert("order", numbers.clone(), 1).await;
        world.insert("user", numbers, 1).await;
        world.relay().command(&["run", "--once"]);
        assert_eq!(world.unsent().await, waiting, "{scope:?}");
        let status = world.operator().command(&["status"]);
        assert!(status.stdout.contains("paused"), "{status}");
        world.operator().command(&[&["resume"], scope].concat()).succeeds();
        world.relay().command(&["run", "--once"]).succeeds();
        assert_eq!(world.unsent().await, 0, "{scope:?}");
    }
    world.check().await.assert_exact();
    world.drop().await;
}

#[tokio::test]
async fn sent_events_are_verified_replayed_and_reaped() {
    let mut world = World::adopted("adopted_replay").await;
    world.create_topic("order", 3, &[]).await;
    world.create_topic("copy", 3, &[]).await;
    world.insert("order", 0..500, 1).await;
    world.relay().command(&["run", "--once"]).succeeds();
    let json = |args: &[&str]| -> Value {
        let ended = world.operator().command(&[args, &["--json"]].concat());
        serde_json::from_str(ended.succeeds()).unwrap_or_else(|error| panic!("{error}: {ended}"))
    };
    let verified = json(&["verify"]);
    assert_eq!((&verified["events"], &verified["broken"]), (&json!(500), &json!(0)), "{verified:#}");
    let replayed = json(&["replay", "--since", "1h", "--key", "order-7"]);
    assert_eq!(replayed["topics"], json!({ world.topic("order"): 25 }), "{replayed}");
    assert_eq!(world.unsent().await, 25);
    world.relay().command(&["run", "--once"]).succeeds();
    assert_eq!(world.check().await.assert_sound().duplicates, 25);
    let copied = json(&[
        "replay",
        "--since",
        "1h",
        "--created",
        "--key",
        "order-8",
        "--to-topic",
        &world.topic("copy"),
    ]);
    assert_eq!(copied["topics"], json!({ world.topic("order"): 25 }), "{copied}");
    assert_eq!(world.cluster.stored(&world.topic("copy")), 25);
    let status = json(&["status"]);
    assert_eq!(status["backlog"]["rows"], json!(0), "{status:#}");

    world.insert("unsent", 0..10, 1).await;
    run(
        &world.client,
        "UPDATE app.events SET \"published at\" = now() - interval '2 hours' WHERE \"Key\" = 'order-3'",
    )
    .await;
    let reap = |args: &[&str]| {
        let relay = world.operator().set("reaper", "retention", "1h");
        relay.command(&[&["reap"], args].concat()).succeeds().to_owned()
    };
    assert!(reap(&["--dry-run"]).contains("25"), "{}", reap(&["--dry-run"]));
    assert!(reap(&[]).contains("25"));
    let left = "SELECT count(*) FROM app.event WHERE aggregate_id = 'order-3'";
    assert_eq!((world.count(left).await, world.unsent().await), (0, 10));
    world.drop().await;
}

/// The running reaper finds the first page by ID.
#[tokio::test]
async fn running_relay_reaps_and_logs_no_error() {
    let mut world = World::adopted("adopted_reaper").await;
    world.create_topic("order", 1, &[]).await;
    world.insert("order", 0..200, 1).await;
    let relay = world.relay().set("reaper", "retention", "1s").set("reaper", "interval", "1s");
    let mut relay = relay.start().await;
    wait_until("all rows are deleted", STALLED, async || {
        world.count("SELECT count(*) FROM app.events").await == 0
    })
    .await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    assert!(!relay.log().contains(" ERROR ") && !relay.log().contains(" WARN "), "{}", relay.log());
    world.check().await.assert_exact();
    world.drop().await;
}

/// The same findings as for a standard outbox.
#[tokio::test]
async fn doctor_and_check_config_find_nothing_wrong_with_an_adopted_table() {
    let mut world = World::adopted("adopted_doctor").await;
    world.create_topic("order", 1, &[]).await;
    world.insert("order", 0..100, 1).await;
    let codes = |relay: crate::support::relay::Relay| -> Vec<String> {
        let ended = relay.command(&["doctor", "--json"]);
        let found: Value =
            serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended}"));
        let findings = found["findings"].as_array().unwrap().iter();
        findings.map(|finding| finding["code"].as_str().unwrap().to_owned()).collect()
    };
    let mut standard = crate::support::outbox::Outbox::create("adopted_standard", 1).await;
    standard.create_topic("user", 1).await;
    crate::support::rows::insert(&standard, "order", 20, 0..100, crate::support::rows::Filling::Nothing)
        .await;
    assert_eq!(codes(world.relay()), codes(standard.relay()));
    let checked = world.relay().command(&["check-config", "--connect"]);
    assert!(checked.succeeds().contains("app.events is valid"), "{checked}");
    // The remedies name the table's own columns.
    let relay = world.roles.as_ref().unwrap().relay().to_owned();
    run(&world.client, &format!("REVOKE UPDATE ON app.events FROM {relay}; REVOKE UPDATE (\"published at\") ON app.events FROM {relay}")).await;
    let refused = world.relay().command(&["run", "--once"]);
    refused.fails(
        78,
        &["lacks UPDATE", "published at", "GRANT UPDATE (\"published at\") ON \"app\".\"events\" TO"],
    );
    standard.drop().await;
    world.drop().await;
}

/// The optional column under another name.
#[tokio::test]
async fn renamed_column_names_the_topic_of_an_event() {
    let mut world = World::with(
        "adopted_topic",
        "CREATE SCHEMA app;
         CREATE TABLE app.events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregate_type text NOT NULL,
                                  aggregate_id text NOT NULL, event_type text NOT NULL, payload jsonb, target text)",
        &[("topic", "target")],
    )
    .await;
    world.migrate(&["--adopt", "app.events", "--apply"]).succeeds();
    let table = table(&[("topic", "target")]);
    world.roles = Some(Roles::create(&world.client, &table).await);
    world.create_topic("order", 1, &[]).await;
    world.create_topic("audit", 1, &[]).await;
    let (allowed, forbidden) = (world.topic("audit"), world.topic("other"));
    let insert = "INSERT INTO app.events (aggregate_type, aggregate_id, event_type, payload, target)
                  VALUES ('order', '1', 'Placed', '{}', $1), ('order', '1', 'Placed', '{}', NULL), ('order', '2', 'Placed', '{}', $2)";
    world.client.execute(insert, &[&allowed, &forbidden]).await.unwrap();
    let with = |relay: crate::support::relay::Relay| relay.set("outbox", "topic_allow", allowed.as_str());
    with(world.relay()).command(&["run", "--once"]);
    let stored = |kind: &str| world.cluster.stored(&world.topic(kind));
    assert_eq!((stored("order"), stored("audit")), (1, 1));
    let dead = "SELECT count(*) FROM app.events_dead_letter WHERE reason = 'topic-not-allowed' AND row_topic IS NOT NULL";
    assert_eq!(world.count(dead).await, 1);
    with(world.operator()).command(&["dead-letters", "requeue", "--all"]).succeeds();
    let requeued = "SELECT count(*) FROM app.events WHERE sent_at IS NULL AND target IS NOT NULL";
    assert_eq!(world.count(requeued).await, 1);
    let verified = with(world.operator()).command(&["verify", "--json", "--topic", &allowed]);
    let verified: Value = serde_json::from_str(verified.succeeds()).unwrap();
    assert_eq!((&verified["events"], &verified["broken"]), (&json!(1), &json!(0)), "{verified:#}");
    world.drop().await;
}

/// The writer draws the ID before it inserts the event, as an ORM does that assigns IDs from a sequence.
#[tokio::test]
async fn event_whose_id_was_drawn_before_the_insert_is_not_overtaken() {
    let mut world = World::adopted("adopted_drawn").await;
    world.create_topic("order", 1, &[]).await;
    let mut relay = world.relay().start().await;
    world.insert("order", 0..20, 1).await;
    world.wait_for_unsent(0).await;
    let early = world.database.connect().await;
    run(&early, "BEGIN").await;
    let drawn = "SELECT nextval(pg_get_serial_sequence('app.events', 'seq no'))";
    let id: i64 = early.query_one(drawn, &[]).await.unwrap().get(0);
    // The keys of these events are in nearly all lanes, and the fence passes several times.
    for number in 20..60 {
        world.insert("order", number..number + 1, 1).await;
        world.wait_for_unsent(0).await;
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let event = |id: String, seq: i64| {
        format!(
            "WITH event AS (
                 INSERT INTO app.event (id, event_id, created_at, aggregate_type, aggregate_id, event_type, payload)
                 VALUES ({id}, gen_random_uuid(), now(), 'order', 'order-5', 'Numbered', '{{\"seq\":{seq}}}')
                 RETURNING event_id, aggregate_type, aggregate_id, payload)
             INSERT INTO app.ledger (event_id, kind, key, seq, value)
             SELECT event_id, aggregate_type, aggregate_id, {seq}, payload::text FROM event"
        )
    };
    run(&early, &event(id.to_string(), 1_000)).await;
    run(&early, "COMMIT").await;
    run(&world.client, &event("nextval('app.\"events_seq no_seq\"')".to_owned(), 1_001)).await;
    world.wait_for_unsent(0).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    assert_eq!(world.check().await.assert_exact().records, 62);
    world.drop().await;
}
