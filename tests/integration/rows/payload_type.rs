//! The type of the payload column changes while a relay runs.

use crate::support::consumer;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::wait::STALLED;

/// More than half of the largest record, so that its hexadecimal form is too large.
const LARGE: usize = 700_000;

const AS_BYTES: &str =
    "ALTER TABLE app.outbox ALTER payload TYPE bytea USING convert_to(payload::text, 'UTF8')";
const AS_JSON: &str =
    "ALTER TABLE app.outbox ALTER payload TYPE json USING convert_from(payload, 'UTF8')::json";

async fn insert(outbox: &Outbox, payload: &str) {
    let sql = format!(
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
         SELECT 'order', 'order-' || n, 'Changed', {payload} FROM generate_series(1, 4) AS n"
    );
    run(&outbox.client, &sql).await;
}

async fn type_changes(test: &str, prepares: bool) {
    let outbox = Outbox::create(test, 3).await;
    let relay = outbox.relay().set("postgres", "prepared_statements", prepares);
    let mut relay = relay.start().await;
    let json = format!("to_json(repeat('x', {LARGE}))");
    let bytes = format!("decode(repeat('ff', {LARGE}), 'hex')");
    insert(&outbox, &json).await;
    outbox.wait_until_drained(STALLED).await;
    for _ in 0..2 {
        run(&outbox.client, AS_BYTES).await;
        insert(&outbox, &bytes).await;
        outbox.wait_until_drained(STALLED).await;
        assert_eq!(outbox.dead_letters().await, 0, "json to bytea: {}", relay.log());
        // Bytes that are not valid text could not be converted back to JSON.
        run(&outbox.client, "DELETE FROM app.outbox").await;
        run(&outbox.client, AS_JSON).await;
        insert(&outbox, &json).await;
        outbox.wait_until_drained(STALLED).await;
        assert_eq!(outbox.dead_letters().await, 0, "bytea to json: {}", relay.log());
    }
    assert!(relay.stop().await.success());
    let records = consumer::read_all(&outbox.topics()).await;
    let sizes: Vec<usize> = records.iter().map(|record| record.value.as_ref().map_or(0, Vec::len)).collect();
    assert_eq!(sizes.iter().filter(|size| **size == LARGE).count(), 8, "{sizes:?}");
    assert_eq!(sizes.iter().filter(|size| **size == LARGE + 2).count(), 12, "{sizes:?}");
    outbox.drop().await;
}

#[tokio::test]
async fn payload_size_follows_a_change_of_the_column_type() {
    type_changes("payload_type", true).await;
}

#[tokio::test]
async fn payload_size_follows_a_change_of_the_column_type_without_prepared_statements() {
    type_changes("payload_type_unprepared", false).await;
}

/// A row that is too large becomes a dead letter with its original bytes.
#[tokio::test]
async fn dead_letter_of_another_column_type_has_the_original_bytes() {
    let outbox = Outbox::create("payload_type_dead", 3).await;
    let mut relay = outbox.start_relay().await;
    insert(&outbox, "'{}'").await;
    outbox.wait_until_drained(STALLED).await;
    run(&outbox.client, AS_BYTES).await;
    insert(&outbox, "decode(repeat('ff', 2000000), 'hex')").await;
    outbox.wait_until_drained(STALLED).await;
    let whole =
        "SELECT count(*) FROM app.outbox_dead_letter WHERE payload = decode(repeat('ff', 2000000), 'hex')";
    assert_eq!(outbox.count(whole).await, 4);
    assert!(relay.stop().await.success());
    outbox.drop().await;
}
