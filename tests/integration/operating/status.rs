//! `outbox-relay status` with real relays, real outages and real data.

mod page;
mod watch;

use serde_json::Value;

use crate::operating::commands::nowhere;
use crate::operating::doctor::{EVENT, World};
use crate::support::database::run;
use crate::support::relay::Relay;
use crate::support::wait::{STALLED, wait_until};

/// An event that is an hour old.
const OLD: &str = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, created_at)
                   VALUES ('order', '1', 'Placed', now() - interval '1 hour')";

/// The JSON object of `--json`.
fn status(relay: &Relay) -> Value {
    let ended = relay.clone().command(&["status", "--json"]);
    serde_json::from_str(ended.succeeds()).unwrap_or_else(|error| panic!("{error}: {ended}"))
}

fn verdict(status: &Value) -> (&str, &str, &str) {
    let of = |field: &str| status["verdict"][field].as_str().unwrap_or_default();
    (of("state"), of("why"), of("command"))
}

/// Relays have the name that `status` searches for: the name in its own configuration.
fn of_relay(relay: &Relay, name: &str) -> Relay {
    relay.clone().set("postgres", "application_name", name)
}

#[tokio::test]
async fn first_line_states_whether_events_are_published() {
    let mut world = World::new("status_verdict").await;
    world.sql(EVENT).await;
    let alone = status(&world.relay);
    let (state, why, command) = verdict(&alone);
    assert_eq!(state, "not-relaying", "{alone:#}");
    assert_eq!(why, "no relay is connected as \"outbox-relay\", and 1 row waits");
    assert!(command.starts_with("outbox-relay run --config /"), "{command}");
    assert!(alone["latency"]["latest_sent_age_seconds"].is_null(), "{alone:#}");
    assert!(alone["reaper"]["oldest_sent_age_seconds"].is_null(), "{alone:#}");

    world.outbox.create_topic("order", 1).await;
    let mut relay = world.relay.clone().start().await;
    world.outbox.wait_until_drained(STALLED).await;
    let at_rest = status(&of_relay(&world.relay, &relay.name));
    assert_eq!(verdict(&at_rest), ("healthy", "no events are waiting", ""), "{at_rest:#}");
    let connections = at_rest["relays"]["at_work"].as_array().unwrap();
    assert!(connections.len() >= 2 && at_rest["relays"]["connections"] == connections.len(), "{at_rest:#}");
    for connection in connections {
        assert_eq!(connection["address"], "127.0.0.1", "{at_rest:#}");
        assert!(
            ["idle", "working", "publishing"].contains(&connection["doing"].as_str().unwrap()),
            "{at_rest:#}"
        );
    }
    let text = of_relay(&world.relay, &relay.name).command(&["status"]);
    assert!(
        text.succeeds()
            .starts_with("healthy: no events are waiting\noutbox        app.outbox on PostgreSQL "),
        "{text}"
    );

    // A missing topic is held, and the other events are published.
    world
        .sql("INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('none', '1', 'X')")
        .await;
    wait_until("the topic is held", STALLED, async || world.outbox.holds().await.len() == 1).await;
    let held = status(&of_relay(&world.relay, &relay.name));
    let (state, why, command) = verdict(&held);
    assert!(why.starts_with("1 topic held ("), "{why}");
    assert!(why.contains("none: unknown-topic)"), "{why}");
    assert_eq!(state, "behind");
    assert!(command.starts_with("outbox-relay doctor --config /"), "{command}");
    assert_eq!(held["backlog"]["first"]["of_held_topics"], 1, "{held:#}");
    assert_eq!(held["backlog"]["first"]["free"], 0, "{held:#}");
    assert!(relay.stop().await.success());
    world.drop().await;
}

#[tokio::test]
async fn relay_without_kafka_is_reported_with_the_command_doctor() {
    let world = World::new("status_standstill").await;
    let away = world.relay.clone().set("kafka", "bootstrap_servers", nowhere());
    let relay = away.clone().start().await;
    world.sql(OLD).await;
    let seen = status(&of_relay(&away, &relay.name));
    let (state, why, command) = verdict(&seen);
    assert_eq!(state, "not-relaying", "{seen:#}");
    assert!(
        why.starts_with("nothing was sent, and the oldest event that is ready to be sent is 1h"),
        "{why}"
    );
    assert!(command.starts_with("outbox-relay doctor --config /"), "{command}");
    crate::operating::doctor::Found::by(&away).has("kafka-unreachable", "no broker reachable at");
    drop(relay);
    world.drop().await;
}

#[tokio::test]
async fn status_shows_why_the_local_relay_is_not_ready() {
    let world = World::new("status_here").await;
    let away = world.relay.clone().set("kafka", "bootstrap_servers", nowhere());
    let listening = away.clone().set("admin", "listen", "127.0.0.1:0");
    let relay = listening.start().await;
    wait_until("the relay has noticed that Kafka is unavailable", STALLED, async || {
        relay.not_ready().await.is_some_and(|why| why.contains("no broker reachable at"))
    })
    .await;
    let here = relay.address();
    let asking = of_relay(&away, &relay.name).set("admin", "listen", here.clone());
    // No event waits yet. Without asking the relay, the state would look healthy.
    assert_eq!(verdict(&status(&of_relay(&away, &relay.name))).0, "healthy");
    let seen = status(&asking);
    let (state, why, _) = verdict(&seen);
    assert_eq!(state, "not-relaying", "{seen:#}");
    let expected = format!("the relay at {here} is not ready: Kafka: no broker reachable at");
    assert!(why.starts_with(&expected), "{why}");
    let screen = asking.clone().command(&["status"]);
    assert!(screen.succeeds().contains(&format!("relay at http://{here}: Kafka: ")), "{screen}");
    // A server that does not answer like a relay is not treated as one.
    let broker = crate::support::topics::Cluster::shared().bootstrap;
    let broker = broker.split(',').next().unwrap();
    let other = status(&of_relay(&away, &relay.name).set("admin", "listen", broker));
    assert!(other["relays"]["here"].is_null(), "{other:#}");
    drop(relay);
    world.drop().await;
}

/// Any client that holds lanes blocks relays.
#[tokio::test]
async fn open_claim_is_shown_whatever_its_application_name() {
    let world = World::new("status_claim").await;
    let claim = world.outbox.database.connect_as(&world.role).await;
    run(
        &claim,
        "SET application_name = 'relay-7'; BEGIN; SELECT FROM app.outbox_lane WHERE lane = 3 FOR UPDATE",
    )
    .await;
    let seen = status(&world.relay);
    let connections = seen["relays"]["at_work"].as_array().unwrap();
    assert_eq!(connections.len(), 1, "{seen:#}");
    assert_eq!(connections[0]["application_name"], "relay-7");
    assert_eq!(connections[0]["doing"], "publishing");
    run(&claim, "ROLLBACK").await;
    assert_eq!(status(&world.relay)["relays"]["connections"], 0);
    drop(claim);
    world.drop().await;
}

#[tokio::test]
async fn latency_covers_the_latest_sent_rows_and_the_reaper_lag_is_shown() {
    let world = World::new("status_latency").await;
    // Of 2,000 sent rows, the latest thousand took 2 s, and the rows before them took an hour. A backlog follows.
    world
        .sql(
            "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, created_at, sent_at)
             SELECT 'order', i::text, 'X', now() - interval '1 minute' - CASE WHEN i <= 1000 THEN interval '1 hour'
                                                                             ELSE interval '2 seconds' END,
                    now() - interval '1 minute'
             FROM generate_series(1, 2000) AS i;
             INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type)
             SELECT 'order', i::text, 'X' FROM generate_series(1, 1500) AS i",
        )
        .await;
    let seen = status(&world.relay);
    let latency = &seen["latency"];
    assert_eq!(latency["rows"], 1_000, "{seen:#}");
    for percentile in ["p50_seconds", "p95_seconds", "p99_seconds", "max_seconds"] {
        assert_eq!(latency[percentile], 2.0, "{percentile}: {seen:#}");
    }
    let latest = latency["latest_sent_age_seconds"].as_f64().unwrap();
    assert!((60.0..120.0).contains(&latest), "{latest}");
    assert_eq!(seen["reaper"]["behind"], false, "{seen:#}");
    let short = world.relay.clone().set("reaper", "retention", "10s").set("reaper", "interval", "1s");
    assert_eq!(status(&short)["reaper"]["behind"], true);
    let text = short.command(&["status"]);
    assert!(
        text.succeeds().contains("reaper        deletes rows 10s after they are sent; behind: the oldest"),
        "{text}"
    );

    let deletes = world.relay.clone().set("outbox", "on_sent", "delete");
    assert!(status(&deletes)["latency"].is_null());
    let text = deletes.command(&["status"]);
    assert!(
        text.succeeds().contains("latency       unknown: rows are deleted when they are sent\n"),
        "{text}"
    );
    world.drop().await;
}

/// A writer can insert a time that no clock has. It must not prevent operators from seeing the rest.
#[tokio::test]
async fn infinite_times_do_no_harm() {
    let world = World::new("status_infinite").await;
    world
        .sql(
            "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, created_at, sent_at)
             VALUES ('order', '1', 'X', '-infinity', now()), ('order', '2', 'X', 'infinity', now()),
                    ('order', '3', 'X', 'infinity', NULL)",
        )
        .await;
    let seen = status(&world.relay);
    assert_eq!(seen["backlog"]["rows"], 1, "{seen:#}");
    assert!(seen["latency"]["max_seconds"].is_null(), "{seen:#}");
    world.drop().await;
}
