//! A faulty deploy: many events in a row cannot become records. A few become dead letters, and the rest of the topic waits
//! until the events are corrected.

use crate::support::consumer;
use crate::support::database::{run, time_out_above};
use crate::support::outbox::Outbox;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::rows::{self, Filling};
use crate::support::topics;
use crate::support::wait::{STALLED, wait_until};
use serde_json::Value;

/// The default of `rejections_before_hold`.
const BEFORE_HOLD: i64 = 10;

/// What a faulty deploy does to the events of type `order` from this number on.
async fn break_from(outbox: &Outbox, seq: i64, change: &str) {
    run(
        &outbox.client,
        &format!("UPDATE app.outbox SET {change} WHERE aggregate_type = 'order' AND (payload ->> 'seq')::bigint >= {seq}"),
    )
    .await;
}

async fn wait_until_held(outbox: &Outbox, topic: &str) {
    let probed = "SELECT count(*) FROM app.outbox_hold WHERE probes > 1";
    wait_until("the topic is held and a probe has failed", STALLED, async || outbox.count(probed).await == 1)
        .await;
    assert_eq!(outbox.holds().await, [(topic.to_owned(), "rejects-everything".to_owned())]);
    assert_eq!(outbox.dead_letters().await, BEFORE_HOLD);
}

/// Requeues the dead letters, and checks that every event arrived once and in order, except that the requeued ones arrived after
/// the later events of their keys.
async fn assert_all_arrive(outbox: &Outbox, mut relay: RelayProcess, requeue: &[&str], events: usize) {
    outbox.wait_until_drained(STALLED).await;
    assert_eq!(outbox.dead_letters().await, BEFORE_HOLD, "no event was rejected after the correction");
    let report = outbox.check().await;
    assert_eq!((report.lost.len(), report.reordered.len(), report.duplicates), (10, 0, 0), "{report}");
    let args = [&["dead-letters", "requeue", "--all"], requeue].concat();
    let done = outbox.operator().command(&args);
    assert_eq!(done.succeeds(), "app.outbox: 10 dead letters requeued\n");
    assert_eq!(done.stderr, "", "no warning");
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    assert_eq!(outbox.dead_letters().await, BEFORE_HOLD, "nothing is rejected again");
    assert_eq!(consumer::read_all(&outbox.topics()).await.len(), events);
}

#[tokio::test]
async fn invalid_headers_of_every_event_hold_the_topic_until_they_are_corrected() {
    for deletes in [false, true] {
        let mut outbox = Outbox::create("wave_headers", 3).await;
        outbox.create_topic("other", 3).await;
        rows::insert(&outbox, "order", 20, 0..1_000, Filling::Nothing).await;
        rows::insert(&outbox, "other", 20, 0..1_000, Filling::Nothing).await;
        break_from(&outbox, 0, "headers = '{\"attempt\": 1, \"tracestate\": null}'").await;
        let relay = outbox.relay().set("outbox", "on_sent", if deletes { "delete" } else { "mark" });
        let relay = relay.start().await;
        wait_until_held(&outbox, &outbox.topic("order")).await;
        wait_until("other topics continue", STALLED, async || outbox.unsent_of("other").await == 0).await;
        let error = "SELECT count(*) FROM app.outbox_hold WHERE error LIKE '%the header \"attempt\" is neither a string%'";
        assert_eq!(outbox.count(error).await, 1);
        let log = relay.log();
        assert!(
            log.contains("topic held: more than 10 events in a row were rejected before sending: the header"),
            "{log}"
        );
        assert!(
            log.contains("events rejected for the same reason. Fix: ") && log.contains("events=10"),
            "{log}"
        );

        // New events wait too, in the order of their keys.
        rows::insert(&outbox, "order", 20, 1_000..1_100, Filling::Nothing).await;
        run(&outbox.client, "UPDATE app.outbox SET headers = NULL WHERE headers IS NOT NULL").await;
        assert_all_arrive(&outbox, relay, &["--stringify-headers"], 2_100).await;
        outbox.drop().await;
    }
}

/// The hold has the name that the topic would have.
#[tokio::test]
async fn invalid_topic_names_of_every_event_are_held_until_they_are_corrected() {
    let mut outbox = Outbox::create("wave_names", 3).await;
    outbox.create_topic("other", 3).await;
    rows::insert(&outbox, "order", 20, 0..1_000, Filling::Nothing).await;
    rows::insert(&outbox, "other", 20, 0..1_000, Filling::Nothing).await;
    break_from(&outbox, 0, r"aggregate_type = 'App\Models\Order'").await;
    let relay = outbox.start_relay().await;
    wait_until_held(&outbox, &outbox.topic(r"App\Models\Order")).await;
    wait_until("other topics continue", STALLED, async || outbox.unsent_of("other").await == 0).await;
    let error = r"SELECT count(*) FROM app.outbox_hold WHERE error LIKE '%character ''\\\\'' at position%'";
    assert_eq!(outbox.count(error).await, 1);
    let warning = outbox.operator().command(&["dead-letters", "requeue", "--all", "--dry-run"]);
    assert!(
        warning.stderr.contains("10 events will be rejected again: the name of their topic is invalid"),
        "{warning}"
    );
    assert!(warning.succeeds().contains(r"App\Models\Order"), "{warning}");

    run(&outbox.client, "UPDATE app.outbox SET aggregate_type = 'order' WHERE aggregate_type LIKE 'App%'")
        .await;
    run(&outbox.client, "UPDATE app.outbox_dead_letter SET aggregate_type = 'order'").await;
    wait_until("the hold has ended", STALLED, async || outbox.holds().await.is_empty()).await;
    assert_all_arrive(&outbox, relay, &[], 2_000).await;
    outbox.drop().await;
}

#[tokio::test]
async fn names_that_are_too_long_to_be_held_become_dead_letters() {
    let outbox = Outbox::create("wave_long", 1).await;
    rows::insert(&outbox, "order", 20, 0..100, Filling::Nothing).await;
    // The read cuts the second one to 300 characters, because the row is too large for a record.
    for (odd, name) in [(0, "repeat('a', 300)"), (1, "repeat('a', 2000000)")] {
        let relay = outbox.relay().set("outbox", "topic", "{aggregate_type}");
        let change = format!("aggregate_type = {name} WHERE sent_at IS NULL AND id % 2 = {odd}");
        run(&outbox.client, &format!("UPDATE app.outbox SET {change}")).await;
        let mut relay = relay.set("relay", "workers", 1).start().await;
        let long = "SELECT count(*) FROM app.outbox WHERE sent_at IS NULL AND length(aggregate_type) > 250";
        wait_until("no long name waits", STALLED, async || outbox.count(long).await == 0).await;
        assert!(relay.stop().await.success(), "{}", relay.log());
    }
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox_hold WHERE length(topic) > 250").await, 0);
    outbox.drop().await;
}

/// Other clients may send larger records to the topic. The finding comes before and after the rejections.
#[tokio::test]
async fn events_between_the_limits_of_the_relay_and_of_the_topic_hold_the_topic() {
    let mut outbox = Outbox::without_topics("wave_large").await;
    outbox.create_topic_with("order", 3, &[("max.message.bytes", "5242880")]).await;
    let topic = outbox.topic("order");
    let finding = "max.message.bytes is 5242880, but message.max.bytes in [kafka.properties] is 1000000";
    let finds = |relay: Relay| {
        let doctor = relay.clone().command(&["doctor"]);
        assert!(
            doctor.stdout.contains("topic-limit-above-relay") && doctor.stdout.contains(finding),
            "{doctor}"
        );
        let check = relay.command(&["check-config", "--connect"]);
        assert!(check.stdout.contains(finding), "{check}");
    };
    // Before the first event, if the configuration names the topic.
    finds(outbox.relay().set("outbox", "topic", topic.clone()));

    rows::insert(&outbox, "order", 20, 0..30, Filling::Nothing).await;
    break_from(
        &outbox,
        0,
        "payload = json_build_object('seq', payload -> 'seq', 'value', repeat('x', 1100000))",
    )
    .await;
    let mut relay = outbox.start_relay().await;
    wait_until_held(&outbox, &topic).await;
    finds(outbox.relay());
    assert!(relay.stop().await.success(), "{}", relay.log());
    run(&outbox.client, "DELETE FROM app.outbox").await;
    finds(outbox.relay());
    let warning = outbox.operator().command(&["dead-letters", "requeue", "--all", "--dry-run"]);
    assert!(
        warning.stderr.contains("10 events will be rejected again: they are larger than the relay allows"),
        "{warning}"
    );

    let larger = || outbox.relay().set_kafka_property("message.max.bytes", "5242880");
    let doctor = larger().command(&["doctor", "--json"]);
    assert!(!doctor.stdout.contains("topic-limit-above-relay"), "{doctor}");
    let mut relay = larger().start().await;
    let operator = outbox.operator().set_kafka_property("message.max.bytes", "5242880");
    let done = operator.command(&["dead-letters", "requeue", "--all"]);
    assert_eq!((done.succeeds(), done.stderr.as_str()), ("app.outbox: 10 dead letters requeued\n", ""));
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    assert_eq!(consumer::read_all(&outbox.topics()).await.len(), 10);
    assert_eq!(topics::stored(&topic), 10);
    outbox.drop().await;
}

#[tokio::test]
async fn invalid_events_between_valid_ones_hold_nothing() {
    let outbox = Outbox::create("wave_between", 3).await;
    rows::insert(&outbox, "order", 1, 0..400, Filling::Nothing).await;
    run(&outbox.client, "UPDATE app.outbox SET headers = '{\"n\": 1}' WHERE id % 8 <> 0").await;
    let held = "CREATE TABLE app.held (topic text);
                CREATE FUNCTION app.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
                $$ BEGIN INSERT INTO app.held VALUES (NEW.topic); RETURN NULL; END $$;
                CREATE TRIGGER note AFTER INSERT ON app.outbox_hold FOR EACH ROW EXECUTE FUNCTION app.note()";
    run(&outbox.client, held).await;
    let mut relay = outbox.start_relay().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    assert_eq!(outbox.dead_letters().await, 350);
    assert_eq!(outbox.count("SELECT count(*) FROM app.held").await, 0, "the topic was held");
    let report = outbox.check().await;
    assert_eq!((report.records, report.reordered.len()), (50, 0), "{report}");
    outbox.drop().await;
}

/// Nothing is lost, so no topic is held. The keys are retried in order once the events are corrected.
#[tokio::test]
async fn invalid_events_block_their_keys_if_configured_and_hold_nothing() {
    let outbox = Outbox::create("wave_block", 3).await;
    rows::insert(&outbox, "order", 50, 0..1_000, Filling::Nothing).await;
    break_from(&outbox, 500, "headers = '{\"attempt\": 1}'").await;
    let mut relay = outbox.relay().set("outbox", "on_rejected", "block-key").start().await;
    let blocked = "SELECT count(*) FROM app.outbox_blocked_key";
    wait_until("every key is blocked", STALLED, async || outbox.count(blocked).await == 50).await;
    wait_until("the events before are sent", STALLED, async || outbox.unsent().await == 500).await;
    assert_eq!((outbox.holds().await, outbox.dead_letters().await), (vec![], 0));
    run(&outbox.client, "UPDATE app.outbox SET headers = NULL WHERE headers IS NOT NULL").await;
    outbox.operator().command(&["blocked-keys", "retry", "--all"]).succeeds();
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    assert_eq!(outbox.check().await.assert_exact().records, 1_000);
    outbox.drop().await;
}

#[tokio::test]
async fn wave_of_rejections_is_shown_by_status_and_doctor() {
    let outbox = Outbox::create("wave_shown", 3).await;
    rows::insert(&outbox, "order", 20, 0..40, Filling::Nothing).await;
    run(&outbox.client, "UPDATE app.outbox SET headers = '{\"n\": 1}' WHERE id % 2 = 0").await;
    let relay = outbox.relay().set("outbox", "rejections_before_hold", 1_000).start().await;
    outbox.wait_until_drained(STALLED).await;
    let operator = outbox.operator().set("postgres", "application_name", relay.name.as_str());
    let status = operator.clone().command(&["status"]);
    for text in [
        "behind: 20 events rejected in the last 10 minutes (most: invalid-headers)",
        "dead letters  20, 20 of them in the last 10 minutes",
    ] {
        assert!(status.succeeds().contains(text), "{text}: {status}");
    }
    let status: Value = serde_json::from_str(operator.command(&["status", "--json"]).succeeds()).unwrap();
    assert_eq!(
        (&status["dead_letters"]["recent"], &status["verdict"]["state"]),
        (&20.into(), &"behind".into())
    );
    // The relay's own role may not read the payload of dead letters.
    for doctor in [outbox.operator().command(&["doctor"]), outbox.relay().command(&["doctor"])] {
        let text = "rejected within the last hour for the reason invalid-headers: 20 events";
        assert!(doctor.stdout.contains(text) && doctor.stdout.contains("events-rejected"), "{doctor}");
    }
    drop(relay);
    run(&outbox.client, "UPDATE app.outbox_dead_letter SET rejected_at = now() - interval '2 hours'").await;
    let doctor = outbox.operator().command(&["doctor"]);
    assert!(!doctor.stdout.contains("events-rejected"), "{doctor}");
    outbox.drop().await;
}

/// Such as that of many large dead letters.
#[tokio::test]
async fn settlement_that_takes_too_long_is_repeated_with_fewer_rows() {
    let outbox = Outbox::create("wave_slow", 3).await;
    rows::insert(&outbox, "order", 20, 0..400, Filling::Nothing).await;
    run(&outbox.client, "UPDATE app.outbox SET headers = '{\"n\": 1}'").await;
    time_out_above(&outbox.client, 20, "INSERT", "app.outbox_dead_letter").await;
    let mut relay = outbox.relay().set("outbox", "rejections_before_hold", 10_000).start().await;
    wait_until("all events are dead letters", STALLED, async || outbox.dead_letters().await == 400).await;
    assert!(relay.log().contains("statement timeout"), "{}", relay.log());
    assert!(relay.stop().await.success(), "{}", relay.log());
    outbox.drop().await;
}
