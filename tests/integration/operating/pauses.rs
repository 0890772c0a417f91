//! Paused rows wait in order while all others are published, with running relays and a real Kafka.

use serde_json::Value;
use std::time::{Duration, SystemTime};

use crate::operating::commands::{Setup, kafka};
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, wait_until};
use crate::support::writers::{Load, Writers};
use postgres::access::grants::{operator_grants, relay_grants};

const BEGUN: &str = " WARN paused ";
const ENDED: &str = " INFO resumed ";

/// A relay with small batches and a port for metrics.
fn relay(outbox: &Outbox) -> Relay {
    outbox.relay().set("relay", "batch_size", 200).set("admin", "listen", "127.0.0.1:0")
}

fn says(relay: &RelayProcess, text: &str) -> usize {
    relay.log().matches(text).count()
}

async fn now(outbox: &Outbox) -> SystemTime {
    outbox.client.query_one("SELECT clock_timestamp()", &[]).await.unwrap().get(0)
}

/// The number of rows matching the condition that were settled in this time.
async fn settled_between(outbox: &Outbox, fits: &str, from: SystemTime, to: SystemTime) -> i64 {
    let sql = format!("SELECT count(*) FROM app.outbox WHERE ({fits}) AND sent_at > $1 AND sent_at < $2");
    outbox.client.query_one(&sql, &[&from, &to]).await.unwrap().get(0)
}

/// Two relays under load. While the pause lasts, none of its rows is settled from one second after the end of older claims on,
/// although more are written. All other rows are published.
async fn paused_and_resumed(
    outbox: &Outbox,
    relays: &mut [RelayProcess; 2],
    scope: &[&str],
    fits: &str,
    metric: &str,
) {
    let begun: Vec<usize> = relays.iter().map(|relay| says(relay, BEGUN)).collect();
    let flowing = format!("SELECT count(*) FROM app.outbox WHERE ({fits}) AND sent_at IS NOT NULL");
    wait_until("rows are published", STALLED, async || outbox.count(&flowing).await > 0).await;
    let command =
        |what: &'static str, extra: &[&str]| outbox.operator().command(&[&[what], scope, extra].concat());
    let said = command("pause", &["--reason", "a test"]);
    assert!(said.succeeds().ends_with(" paused\n"), "{said}");
    let paused = now(outbox).await;
    let older =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start < $1";
    wait_until("claims that began before the pause have ended", STALLED, async || {
        outbox.client.query_one(older, &[&paused]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
    let paused_at = now(outbox).await + Duration::from_secs(1);
    assert!(command("pause", &[]).succeeds().contains("was already paused"));

    for (relay, before) in relays.iter_mut().zip(begun) {
        wait_until("each relay logs the pause", STALLED, async || says(relay, BEGUN) == before + 1).await;
        let name = format!("outbox_relay_paused{{scope=\"{metric}\"}}");
        wait_until("each relay shows the pause", STALLED, async || relay.metric(&name).await == Some(1.0))
            .await;
    }
    let waiting = format!("SELECT count(*) FROM app.outbox WHERE ({fits}) AND sent_at IS NULL");
    let before = outbox.count(&waiting).await;
    wait_until("more paused rows are written for two seconds", STALLED, async || {
        let over = paused_at + Duration::from_secs(2);
        now(outbox).await > over && outbox.count(&waiting).await > before + 10
    })
    .await;
    let ended = now(outbox).await;
    let (of_it, all) = (
        settled_between(outbox, fits, paused_at, ended).await,
        settled_between(outbox, "true", paused_at, ended).await,
    );
    println!("{scope:?}: settled during the pause: {of_it} paused rows, {} others", all - of_it);
    assert_eq!(of_it, 0, "{scope:?}");
    assert_eq!(all > 0, !scope.is_empty(), "other rows must be published: {scope:?}");

    let said = command("resume", &[]);
    assert!(said.succeeds().ends_with(" resumed\n"), "{said}");
    let last = outbox.count("SELECT max(id) FROM app.outbox").await;
    let left = format!("{waiting} AND id <= {last}");
    wait_until("the waiting rows are settled", STALLED, async || outbox.count(&left).await == 0).await;
    assert!(command("resume", &[]).succeeds().contains("was not paused"));
}

#[tokio::test]
async fn everything_a_topic_or_a_key_is_paused_under_load_and_published_in_order_when_it_is_resumed() {
    let mut outbox = Outbox::create("pauses", 3).await;
    outbox.create_topic("user", 3).await;
    let mut keys = outbox.add_aggregates("order", 20).await;
    keys.extend(outbox.add_aggregates("user", 20).await);
    let load = Load { writers: 2, pause: Duration::from_millis(10), ..Load::default() };
    let writers = Writers::start(&outbox, &keys, load).await;
    let mut relays = [relay(&outbox).start().await, relay(&outbox).start().await];
    let topic = outbox.topic("order");
    let scopes: [(&[&str], &str, &str); 3] = [
        (&[], "true", "everything"),
        (&["--topic", &topic], "aggregate_type = 'order'", "topic"),
        (&["--key", "order", "order-7"], "aggregate_type = 'order' AND aggregate_id = 'order-7'", "key"),
    ];
    for (scope, fits, metric) in scopes {
        paused_and_resumed(&outbox, &mut relays, scope, fits, metric).await;
    }
    let written = writers.stop().await;
    outbox.wait_until_drained(STALLED).await;
    for relay in &mut relays {
        wait_until("each relay logs the end of all pauses", STALLED, async || says(relay, ENDED) == 3).await;
        assert!(relay.stop().await.success(), "{}", relay.log());
        assert_eq!((says(relay, BEGUN), says(relay, ENDED)), (3, 3), "{}", relay.log());
    }
    let report = outbox.check().await;
    println!("{written} events: {report}");
    report.assert_exact();
    outbox.drop().await;
}

/// Only paused rows wait. A held topic that is also paused is not probed, because a probe publishes a row.
#[tokio::test]
async fn pause_survives_the_relays_and_a_paused_topic_stays_held() {
    let mut outbox = Outbox::create("pauses_held", 1).await;
    for kind in ["held", "other"] {
        outbox.create_topic(kind, 1).await;
    }
    let topic = outbox.topic("order");
    outbox.operator().command(&["pause", "--topic", &topic]).succeeds();
    let holds = "INSERT INTO app.outbox_hold (topic, reason, error) VALUES ($1, 'stuck', 'by hand'), ($2, 'stuck', '')";
    outbox.client.execute(holds, &[&topic, &outbox.topic("held")]).await.unwrap();
    for life in 0..2 {
        for kind in ["order", "held", "other"] {
            rows::insert(&outbox, kind, 10, life * 100..life * 100 + 100, Filling::Nothing).await;
        }
        let mut relay = outbox.start_relay().await;
        // The other held topic was probed and released.
        for kind in ["held", "other"] {
            outbox.wait_until_sent(kind, STALLED).await;
        }
        relay.kill();
    }
    assert_eq!(outbox.unsent_of("order").await, 200);
    assert_eq!(outbox.holds().await, [(topic.clone(), "stuck".to_owned())]);
    assert_eq!(
        outbox.count("SELECT probes::bigint FROM app.outbox_hold").await,
        0,
        "the paused topic was probed"
    );

    let mut relay = outbox.start_relay().await;
    outbox.operator().command(&["resume", "--topic", &topic]).succeeds();
    outbox.wait_until_sent("order", STALLED).await;
    assert_eq!(outbox.holds().await, [], "the hold ended with its own probe");
    assert!(relay.stop().await.success(), "{}", relay.log());
    outbox.check_of("order").await.assert_sound();
    outbox.drop().await;
}

/// If all types share a topic, a key has one order for all types.
#[tokio::test]
async fn in_a_topic_for_all_types_a_key_is_paused_for_every_type() {
    let mut outbox = Outbox::without_topics("pauses_one").await;
    outbox.create_topic("all", 1).await;
    let one_topic = || outbox.relay().set("outbox", "topic", outbox.topic("all"));
    let operator = || outbox.operator().set("outbox", "topic", outbox.topic("all"));
    operator().command(&["pause", "--key", "order", "k1"]).succeeds();
    let sql = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type)
               SELECT CASE n % 2 WHEN 0 THEN 'order' ELSE 'user' END, 'k' || n % 3, 'X'
               FROM generate_series(1, 60) AS n";
    run(&outbox.client, sql).await;
    let mut relay = one_topic().start().await;
    wait_until("the other keys are sent", STALLED, async || outbox.unsent().await <= 20).await;
    let types =
        "SELECT count(DISTINCT aggregate_type) FROM app.outbox WHERE sent_at IS NULL AND aggregate_id = 'k1'";
    assert_eq!((outbox.unsent().await, outbox.count(types).await), (20, 2));
    // The same with `run --once`, which reports what is left.
    assert!(relay.stop().await.success());
    let once = one_topic().command(&["run", "--once"]);
    once.succeeds();
    assert!(once.stderr.contains("0 held topics, 0 blocked keys, 1 pause."), "{once}");
    operator().command(&["resume", "--all"]).succeeds();
    one_topic().command(&["run", "--once"]).succeeds();
    assert_eq!(outbox.unsent().await, 0);
    outbox.drop().await;
}

#[tokio::test]
async fn status_and_history_show_who_paused_what_and_why() {
    let setup = Setup::migrated("pauses_shown").await;
    assert!(setup.relay(&["status"]).succeeds().contains("paused        nothing\n"));
    let pauses: [&[&str]; 3] = [
        &["--reason", "a \u{1b}[31mmigration"],
        &["--topic", "events.order", "--reason", "consumers are broken"],
        &["--key", "order", "a-customer"],
    ];
    for scope in pauses {
        setup.relay(&[&["pause"], scope].concat()).succeeds();
    }
    let by = setup.roles().on_call();
    let text = setup.relay(&["status"]);
    for part in [
        "paused        3; the events in each scope wait\n",
        &format!("  everything  by {by} since 20"),
        r": a \u{1b}[31mmigration",
        &format!("  topic events.order  by {by} since 20"),
        ": consumers are broken\n",
        "  key a-customer of order  by ",
        "fix: when the reason no longer applies, run `outbox-relay resume --config ",
    ] {
        assert!(text.succeeds().contains(part), "{part}: {text}");
    }
    let json: Value = serde_json::from_str(setup.relay(&["status", "--json"]).succeeds()).unwrap();
    let shown = |at: usize, field: &str| json["paused"][at][field].clone();
    assert_eq!(shown(0, "scope"), "everything", "{json}");
    assert_eq!((shown(1, "scope"), shown(1, "topic")), ("topic".into(), "events.order".into()), "{json}");
    assert_eq!((shown(1, "reason"), shown(1, "by")), ("consumers are broken".into(), by.into()), "{json}");
    assert_eq!(
        (shown(2, "aggregate_type"), shown(2, "key")),
        ("order".into(), "a-customer".into()),
        "{json}"
    );

    let left = setup.relay(&["resume"]);
    assert_eq!(
        left.succeeds(),
        "app.outbox: everything resumed\nstill paused: topic events.order\nstill paused: key a-customer of order\n"
    );
    assert_eq!(setup.relay(&["resume", "--all"]).succeeds(), "app.outbox: 2 pauses ended\n");
    let acts = setup.relay(&["dead-letters", "history", "--json"]);
    let acts: Vec<Value> = acts.succeeds().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let pause_ids: Vec<_> = acts.iter().map(|act| (act["act"].clone(), act["pause_id"].as_i64())).collect();
    let expected = [("resume", 3), ("resume", 2), ("resume", 1), ("pause", 3), ("pause", 2), ("pause", 1)];
    assert_eq!(pause_ids, expected.map(|(act, id)| (act.into(), Some(id))));
    assert_eq!(
        (&acts[4]["topic"], &acts[4]["reason"]),
        (&"events.order".into(), &"consumers are broken".into())
    );
    let history = setup.relay(&["dead-letters", "history"]);
    assert!(
        history.succeeds().contains("  pause  pause 3  a key of order  from outbox-relay command at "),
        "{history}"
    );
    assert!(!history.stdout.contains("a-customer"), "the key itself is recorded: {history}");
    setup.drop(&[]).await;
}

/// Lists are cut, but not before the pause that stops everything.
#[tokio::test]
async fn pause_of_everything_is_shown_among_many_others() {
    let setup = Setup::migrated("pauses_many").await;
    let keys = "INSERT INTO app.outbox_pause (aggregate_type, aggregate_id)
                SELECT 'order', n FROM generate_series(1, 120) AS n";
    setup.sql(keys).await;
    setup.relay(&["pause"]).succeeds();
    let json: Value = serde_json::from_str(setup.relay(&["status", "--json"]).succeeds()).unwrap();
    assert_eq!(json["paused"][0]["scope"], "everything", "{json}");
    assert_eq!(json["paused"].as_array().unwrap().len(), 100, "{json}");
    assert_eq!(json["paused_total"], 121, "{json}");
    let text = setup.relay(&["status"]);
    for part in ["paused        121; the events", "  and 21 more\n"] {
        assert!(text.succeeds().contains(part), "{part}: {text}");
    }
    let left = setup.relay(&["resume", "--topic", "events.order"]);
    let listed = "was not paused\nstill paused: everything\nstill paused: key 1 of order\n";
    assert!(left.succeeds().contains(listed), "{left}");
    assert!(left.stdout.ends_with("still paused: key 9 of order\nand 111 more\n"), "{left}");
    setup.drop(&[]).await;
}

/// The pause that the command sees is about to end. Its statement waits for that, and then pauses again.
#[tokio::test]
async fn pause_during_a_resume_pauses() {
    let outbox = Outbox::create("pause_resume", 1).await;
    outbox.operator().command(&["pause"]).succeeds();
    run(&outbox.client, "BEGIN; DELETE FROM app.outbox_pause").await;
    let mut pausing = outbox.operator().spawn(&["pause"]);
    let waits = outbox.database.connect().await;
    let blocked = "SELECT count(*) FROM pg_stat_activity
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    wait_until("the command waits", STALLED, async || {
        waits.query_one(blocked, &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
    run(&outbox.client, "COMMIT").await;
    assert!(pausing.ended().await.success(), "{}", pausing.log());
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox_pause").await, 1);
    drop(waits);
    outbox.drop().await;
}

#[tokio::test]
async fn missing_privilege_to_pause_is_reported_with_its_grant() {
    let setup = Setup::migrated("pauses_grants").await;
    let (role, _) = setup.database.connect_as_new_role().await;
    let table = "app.outbox".parse().unwrap();
    run(&setup.client, &relay_grants(&table, &role)).await;
    setup.configure(&setup.database.url().replace("postgres@", &format!("{role}@")), &kafka());
    let insert = "GRANT INSERT (topic, aggregate_type, aggregate_id, reason) ON \"app\".\"outbox_pause\" TO";
    setup.relay(&["pause"]).fails(78, &[insert]);
    setup.relay(&["resume"]).fails(78, &["GRANT DELETE ON \"app\".\"outbox_pause\" TO"]);
    assert_eq!(setup.number("SELECT count(*) FROM app.outbox_pause").await, 0);
    run(&setup.client, &operator_grants(&table, &role)).await;
    setup.relay(&["pause"]).succeeds();
    setup.relay(&["resume"]).succeeds();
    // A typing error pauses nothing and is reported as an error.
    setup.relay(&["pause", "--topic", "order"]).fails(2, &["events.{aggregate_type}"]);
    setup.relay(&["pause", "--topic", "events."]).fails(2, &["events.{aggregate_type}"]);
    setup.relay(&["pause", "--key", "order"]).fails(2, &["--key"]);
    setup.relay(&["pause", "--key", "order", "1", "--topic", "events.order"]).fails(2, &["--topic"]);
    setup.relay(&["resume", "--all", "--topic", "events.order"]).fails(2, &["--all"]);
    assert_eq!(setup.number("SELECT count(*) FROM app.outbox_act").await, 2);
    setup.drop(&[&role]).await;
}
