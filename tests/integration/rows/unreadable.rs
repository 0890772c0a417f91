//! A row that PostgreSQL cannot read stops only its own key.

use std::sync::Arc;

use outbox_relay::config;
use postgres::columns::PayloadType;
use postgres::connection::pool::Database;
use postgres::operate::sent::{HistoryRange, PostgresHistory, SentSelection};
use relay::health::stats::Stats;

use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::rows::{Filling, insert};
use crate::support::wait::{STALLED, wait_until};

const KEYS: i64 = 40;
/// The number of the row that becomes unreadable, and its key.
const BAD: i64 = 207;
const ROWS: i64 = 400;

/// Deletes out-of-line values of the outbox, as a damaged disk would.
pub async fn damage(outbox: &Outbox) {
    delete_chunks(outbox, "true").await;
    let read = outbox.client.query("SELECT payload FROM app.outbox", &[]).await;
    assert!(read.is_err(), "the row is still readable");
}

/// Deletes chunks of out-of-line values. A superuser cannot delete from a TOAST table, so it becomes an ordinary table
/// for a moment. Chunks count as present until they are vacuumed.
async fn delete_chunks(outbox: &Outbox, which: &str) {
    let toast = "SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 'app.outbox'::regclass";
    let toast: String = outbox.client.query_one(toast, &[]).await.unwrap().get(0);
    let kind = |kind: char| format!("UPDATE pg_class SET relkind = '{kind}' WHERE oid = '{toast}'::regclass");
    run(
        &outbox.client,
        &format!(
            "SET allow_system_table_mods = on; BEGIN; {}; DELETE FROM {toast} WHERE {which}; {}; COMMIT",
            kind('r'),
            kind('t')
        ),
    )
    .await;
    run(&outbox.client, &format!("VACUUM {toast}")).await;
}

async fn only_its_key_waits(test: &str, settings: &[(&str, &str, toml::Value)]) {
    let outbox = Outbox::create(test, 3).await;
    insert(&outbox, "order", KEYS, 0..BAD, Filling::Nothing).await;
    run(&outbox.client, "ALTER TABLE app.outbox ALTER payload SET STORAGE EXTERNAL").await;
    insert(&outbox, "order", KEYS, BAD..BAD + 1, Filling::Letters(10_000)).await;
    insert(&outbox, "order", KEYS, BAD + 1..ROWS, Filling::Nothing).await;
    damage(&outbox).await;
    let bad = outbox.count("SELECT id FROM app.outbox ORDER BY id OFFSET 207 LIMIT 1").await;

    let relay = settings
        .iter()
        .fold(outbox.relay(), |relay, (section, key, value)| relay.set(section, key, value.clone()));
    let mut relay = relay.start().await;
    let waiting = (BAD..ROWS).filter(|number| number % KEYS == BAD % KEYS).count() as i64;
    wait_until("only the rows of its key wait", STALLED, async || outbox.unsent().await == waiting).await;
    let blocked = "SELECT outbox_id, reason, error FROM app.outbox_blocked_key";
    wait_until("the key is blocked", STALLED, async || {
        outbox.client.query(blocked, &[]).await.unwrap().len() == 1
    })
    .await;
    let row = outbox.client.query_one(blocked, &[]).await.unwrap();
    let (id, reason, error): (i64, &str, &str) = (row.get(0), row.get(1), row.get(2));
    assert_eq!((id, reason), (bad, "unreadable-row"));
    assert!(error.contains("missing chunk") && error.contains("XX001"), "{error}");
    assert_eq!(outbox.dead_letters().await, 0, "an unreadable row cannot be moved to the dead letters");
    // Other rows of the same lanes are published as usual.
    insert(&outbox, "order", KEYS - 1, ROWS..ROWS + 100, Filling::Nothing).await;
    let of_others = "SELECT count(*) FROM app.outbox WHERE sent_at IS NULL AND aggregate_id <> 'order-7'";
    wait_until("later rows are published", STALLED, async || outbox.count(of_others).await == 0).await;
    assert!(!relay.log().contains("postgres unavailable"), "an unreadable row is not an outage");

    let listed = outbox.operator().command(&["blocked-keys", "list"]);
    assert!(listed.succeeds().contains("unreadable-row"), "{listed}");
    // The payload is restored from a backup.
    let restore = "UPDATE app.outbox AS o SET payload = l.value::json FROM app.ledger AS l
                   WHERE l.event_id = o.event_id AND o.id = ";
    run(&outbox.client, &format!("{restore} {bad}")).await;
    outbox.operator().command(&["blocked-keys", "retry", "--all"]).succeeds();
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    outbox.check().await.assert_exact();
    outbox.drop().await;
}

#[tokio::test]
async fn unreadable_row_blocks_only_its_key() {
    only_its_key_waits("unreadable", &[]).await;
}

#[tokio::test]
async fn unreadable_row_blocks_only_its_key_without_prepared_statements() {
    only_its_key_waits("unreadable_cursor", &[("postgres", "prepared_statements", false.into())]).await;
}

#[tokio::test]
async fn unreadable_row_blocks_only_its_key_with_block_key() {
    only_its_key_waits("unreadable_block", &[("outbox", "on_rejected", "block-key".into())]).await;
}

/// The topic of the row depends on the damaged value, which statements about other rows must not read.
#[tokio::test]
async fn unreadable_event_type_blocks_only_its_key() {
    let mut outbox = Outbox::without_topics("unreadable_type").await;
    outbox.create_topic("Numbered", 3).await;
    insert(&outbox, "order", KEYS, 0..BAD, Filling::Nothing).await;
    run(&outbox.client, "ALTER TABLE app.outbox ALTER event_type SET STORAGE EXTERNAL").await;
    let long = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type)
                VALUES ('order', 'order-7', repeat('x', 20000))";
    run(&outbox.client, long).await;
    insert(&outbox, "order", KEYS, BAD + 1..ROWS, Filling::Nothing).await;
    delete_chunks(&outbox, "chunk_seq > 2").await;
    let read = outbox.client.query("SELECT event_type || '' FROM app.outbox", &[]).await;
    assert!(read.is_err(), "the row is still readable");

    let mut relay = outbox.relay().set("outbox", "topic", outbox.topic("{event_type}")).start().await;
    let of_others = "SELECT count(*) FROM app.outbox WHERE sent_at IS NULL AND aggregate_id <> 'order-7'";
    wait_until("the rows of other keys are sent", STALLED, async || outbox.count(of_others).await == 0).await;
    let blocked = "SELECT count(*) FROM app.outbox_blocked_key WHERE reason = 'unreadable-row'";
    wait_until("the key is blocked", STALLED, async || outbox.count(blocked).await == 1).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    outbox.drop().await;
}

/// The server knows the length of a jsonb only after it has read it, so a batch must not measure the rows that follow it.
#[tokio::test]
async fn batch_of_sent_events_reads_none_of_the_rows_after_it() {
    let outbox = Outbox::without_topics("unreadable_later").await;
    let insert = "INSERT INTO app.outbox (id, aggregate_type, aggregate_id, event_type, payload, sent_at) OVERRIDING SYSTEM VALUE
                  SELECT n, 'order', 'order-1', 'Numbered', to_jsonb(repeat('x', 1000000)), now()";
    run(
        &outbox.client,
        "ALTER TABLE app.outbox ALTER payload TYPE jsonb USING payload::jsonb, ALTER payload SET STORAGE EXTERNAL",
    )
    .await;
    run(&outbox.client, &format!("{insert} FROM generate_series(21, 21) AS n")).await;
    damage(&outbox).await;
    run(&outbox.client, &format!("{insert} FROM generate_series(1, 20) AS n")).await;

    let settings = [
        ("POSTGRES__URL", outbox.relay_url()),
        ("KAFKA__BOOTSTRAP_SERVERS", "none:1".to_owned()),
        ("OUTBOX__TABLE", "app.outbox".to_owned()),
    ];
    let settings = settings.map(|(name, value)| (format!("OUTBOX_RELAY__{name}"), value));
    let config = config::load(None, settings.into_iter()).unwrap();
    let (table, topics) = (config.outbox.table.clone(), config.outbox.topic.clone());
    let database = Database::new(&config.postgres, 1, Arc::new(Stats::new())).unwrap();
    let history = PostgresHistory::new(database, table, topics.into(), PayloadType::Jsonb);
    let range =
        HistoryRange { selection: SentSelection::default(), highest: i64::MAX, record_bytes_max: 2_000_000 };
    let batch = history.rows(&range, 0).await.unwrap();
    assert_eq!(batch.len(), 9, "the ninth row exceeds 8 MiB");
    assert!(history.rows(&range, 19).await.is_err(), "the last row is still readable");
    outbox.drop().await;
}
