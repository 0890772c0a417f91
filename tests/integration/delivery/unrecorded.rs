//! PostgreSQL permanently prevents the relay from recording sent rows. Publishing stops early, because each published row would be
//! published again after a restart, and the relay reports the cause.

use crate::support::consumer::read_all;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::wait::{STALLED, wait_until};

const SWALLOWS: &str = "
CREATE FUNCTION app.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER keep BEFORE UPDATE ON app.outbox FOR EACH ROW EXECUTE FUNCTION app.keep()";

fn insert(rows: usize) -> String {
    format!(
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) SELECT 'order', (n % 50)::text, 'Placed'
         FROM generate_series(1, {rows}) n"
    )
}

/// The relay starts before the damage, because the checks at start would find most of it.
async fn prevented(test: &str, damage: &str, repair: &str, cause: &str) {
    const BATCH: usize = 100;
    const ROWS: usize = 40 * BATCH;
    let mut outbox = Outbox::create(test, 3).await;
    let relay = outbox.relay().set("relay", "batch_size", BATCH as i64).set("relay", "workers", 1);
    let mut relay = relay.set("admin", "listen", "127.0.0.1:0").start().await;
    run(&outbox.client, &insert(BATCH)).await;
    outbox.wait_until_drained(STALLED).await;
    run(&outbox.client, damage).await;
    run(&outbox.client, &insert(ROWS)).await;
    wait_until("the relay is not ready and names the cause", STALLED, async || {
        relay.not_ready().await.is_some_and(|reason| reason.contains(cause))
    })
    .await;
    // Attempts continue, without more records than one or two batches.
    let attempts = relay.metric("outbox_relay_postgres_faults_total").await.unwrap();
    wait_until("further attempts", STALLED, async || {
        relay.metric("outbox_relay_postgres_faults_total").await.unwrap() >= attempts + 3.0
    })
    .await;
    let published = read_all(&outbox.topics()).await.len();
    assert!(published <= 5 * BATCH, "{published} of {ROWS} rows were published without being recorded");

    let stopped = relay.stop().await;
    assert_eq!(stopped.code(), Some(1), "{}", relay.log());
    assert!(relay.log().contains("could not be recorded as sent"), "{}", relay.log());

    run(&outbox.client, repair).await;
    outbox.reconnect().await;
    let relay = outbox.start_relay().await;
    outbox.wait_until_drained(STALLED).await;
    drop(relay);
    outbox.drop().await;
}

#[tokio::test]
async fn trigger_that_suppresses_updates_is_named_and_stops_publishing() {
    prevented("swallowed", SWALLOWS, "DROP TRIGGER keep ON app.outbox", "drop the trigger on the outbox")
        .await;
}

/// The server reports a changed row, but its `sent_at` is what it was.
#[tokio::test]
async fn trigger_that_undoes_updates_is_named_and_stops_publishing() {
    for (test, undoes) in [("undone", "RETURN OLD;"), ("kept", "NEW.sent_at := OLD.sent_at; RETURN NEW;")] {
        let damage = SWALLOWS.replace("RETURN NULL;", undoes);
        prevented(test, &damage, "DROP TRIGGER keep ON app.outbox", "drop the trigger on the outbox").await;
    }
}

#[tokio::test]
async fn trigger_that_rejects_updates_stops_publishing() {
    let rejects = SWALLOWS.replace("RETURN NULL;", "RAISE EXCEPTION ''events are append-only'';");
    prevented("append_only", &rejects, "DROP TRIGGER keep ON app.outbox", "events are append-only").await;
}

/// A relay that has never recorded a row, for example the first one, does not know yet whether it can.
#[tokio::test]
async fn relay_that_has_recorded_nothing_publishes_few_rows() {
    let constraint = "ALTER TABLE app.outbox ADD CONSTRAINT unsent CHECK (sent_at IS NULL)";
    few_rows("unproven", constraint, "ALTER TABLE app.outbox DROP CONSTRAINT unsent", "unsent").await;
    few_rows("unproven_swallowed", SWALLOWS, "DROP TRIGGER keep ON app.outbox", "drop the trigger").await;
}

async fn few_rows(test: &str, damage: &str, repair: &str, cause: &str) {
    const ROWS: usize = 20_000;
    let mut outbox = Outbox::create(test, 3).await;
    run(&outbox.client, damage).await;
    run(&outbox.client, &insert(ROWS)).await;
    let mut relay = outbox.relay().set("admin", "listen", "127.0.0.1:0").start().await;
    wait_until("the relay is not ready and names the cause", STALLED, async || {
        relay.not_ready().await.is_some_and(|reason| reason.contains(cause))
    })
    .await;
    let published = read_all(&outbox.topics()).await.len();
    // A claim of 100 rows for each group of lanes, until one of them is claimed again.
    assert!(published <= 1_000, "{published} of {ROWS} rows were published without being recorded");
    println!("{published} of {ROWS} rows were published without being recorded");
    assert_eq!(relay.stop().await.code(), Some(1), "{}", relay.log());

    run(&outbox.client, repair).await;
    outbox.reconnect().await;
    let relay = outbox.start_relay().await;
    outbox.wait_until_drained(STALLED).await;
    drop(relay);
    outbox.drop().await;
}

#[tokio::test]
async fn publication_without_a_replica_identity_stops_publishing() {
    let damage = "ALTER TABLE app.outbox REPLICA IDENTITY NOTHING; CREATE PUBLICATION changes FOR ALL TABLES";
    prevented("unidentified", damage, "DROP PUBLICATION changes", "replica identity").await;
}

#[tokio::test]
async fn publication_with_an_unsuitable_row_filter_stops_publishing() {
    // PostgreSQL 14 has no row filters.
    if !std::env::var("OUTBOX_RELAY_TEST_PG_VERSION").is_ok_and(|version| version == "14") {
        let damage = "CREATE PUBLICATION filtered FOR TABLE app.outbox WHERE (sent_at IS NULL)";
        prevented("filtered", damage, "DROP PUBLICATION filtered", "which names the publication").await;
    }
}
