//! Rows with a huge part. The relay recognizes them by their length, never fetches them, and dead-letters them whole.
//! Other rows are not affected.

use crate::support::consumer;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::wait::{STALLED, wait_until};

const MIB: u64 = 1 << 20;

/// A row as SQL expressions, with the reason for which it must be dead-lettered.
struct Row {
    kind: &'static str,
    key: &'static str,
    event_type: &'static str,
    headers: &'static str,
    reason: &'static str,
}

const PLAIN: Row =
    Row { kind: "'order'", key: "''", event_type: "'Changed'", headers: "NULL", reason: "record-too-large" };

/// 20 MB without repetitions that PostgreSQL's compression would find, which looks back 4 KiB.
const RANDOM: &str = "(SELECT repeat(string_agg(md5(n::text), ''), 2000) FROM generate_series(1, 320) AS n)";
const RANDOM_HEADERS: &str = "(SELECT jsonb_build_object('h', repeat(string_agg(md5(n::text), ''), 6000)) FROM generate_series(1, 320) AS n)";
const LETTERS: &str = "repeat('x', 20000000)";
/// Five kilobytes in the table whose text has 1.3 GB, more than the server can produce.
const DIGITS: &str =
    "(SELECT jsonb_build_object('n', jsonb_agg('1e131000'::jsonb)) FROM generate_series(1, 10000))";

/// The same in the place of bytes.
const DIGITS_OF_BYTES: &str = "(SELECT jsonb_build_object('n', jsonb_build_object('base64', jsonb_agg('1e131000'::jsonb))) FROM generate_series(1, 10000))";

const ROWS: &[Row] = &[
    Row { headers: DIGITS_OF_BYTES, key: "'digits of bytes'", reason: "invalid-headers", ..PLAIN },
    Row { headers: "jsonb_build_object('h', repeat('v', 60000000))", key: "'letters'", ..PLAIN },
    Row { headers: RANDOM_HEADERS, key: "'random'", ..PLAIN },
    Row { headers: DIGITS, key: "'digits'", reason: "invalid-headers", ..PLAIN },
    Row { key: RANDOM, ..PLAIN },
    Row { key: LETTERS, ..PLAIN },
    Row { event_type: RANDOM, key: "'random type'", ..PLAIN },
    Row { event_type: LETTERS, key: "'type of letters'", ..PLAIN },
    Row { kind: RANDOM, key: "'random kind'", reason: "invalid-topic-name", ..PLAIN },
    Row { kind: LETTERS, key: "'kind of letters'", reason: "invalid-topic-name", ..PLAIN },
];

/// The neighbors of a row have its key, unless the key itself is huge.
fn neighbors_key(row: &Row) -> &'static str {
    if row.key == RANDOM || row.key == LETTERS { "'neighbour'" } else { row.key }
}

async fn insert(outbox: &Outbox, kind: &str, key: &str, event_type: &str, headers: &str) {
    let columns = "aggregate_type, aggregate_id, event_type, payload, headers";
    let values = format!("{kind}, {key}, {event_type}, '{{}}', {headers}");
    run(&outbox.client, &format!("INSERT INTO app.outbox ({columns}) VALUES ({values})")).await;
}

#[tokio::test]
async fn huge_rows_are_dead_lettered_without_being_fetched_and_delay_no_other_row() {
    let outbox = Outbox::create("huge", 3).await;
    for neighbor_type in ["'Before'", "", "'After'"] {
        for row in ROWS {
            if neighbor_type.is_empty() {
                insert(&outbox, row.kind, row.key, row.event_type, row.headers).await;
            } else {
                insert(&outbox, "'order'", neighbors_key(row), neighbor_type, "NULL").await;
            }
        }
    }
    run(&outbox.client, "CREATE TABLE app.before AS TABLE app.outbox").await;
    let mut relay = outbox.start_relay().await;
    outbox.wait_until_drained(STALLED).await;
    let resident = relay.resident_max();
    println!("{} MiB resident at most", resident / MIB);
    assert!(relay.stop().await.success(), "{}", relay.log());
    assert!(resident < 48 * MIB, "{} MiB resident", resident / MIB);

    // By id, because keys are huge, too.
    let sql = "SELECT reason FROM app.outbox_dead_letter ORDER BY outbox_id";
    let dead = outbox.client.query(sql, &[]).await.unwrap();
    let dead: Vec<&str> = dead.iter().map(|row| row.get(0)).collect();
    assert_eq!(dead, ROWS.iter().map(|row| row.reason).collect::<Vec<_>>());
    let whole = "SELECT count(*) FROM app.outbox_dead_letter AS d JOIN app.before AS b
                 ON d.outbox_id = b.id AND d.event_id = b.event_id AND d.aggregate_type = b.aggregate_type
                    AND d.aggregate_id = b.aggregate_id AND d.event_type = b.event_type
                    AND d.headers IS NOT DISTINCT FROM b.headers AND d.created_at = b.created_at";
    assert_eq!(outbox.count(whole).await, ROWS.len() as i64, "every dead letter is whole");

    let records = consumer::read_all(&outbox.topics()).await;
    assert_eq!(records.len(), 2 * ROWS.len());
    for row in ROWS {
        let key = neighbors_key(row).trim_matches('\'');
        let of_key = records.iter().filter(|record| record.key.as_deref() == Some(key.as_bytes()));
        let types: Vec<&[u8]> = of_key.map(|record| record.header("event_type").unwrap()).collect();
        let times = ROWS.iter().filter(|other| neighbors_key(other) == neighbors_key(row)).count();
        let wanted = [vec![&b"Before"[..]; times], vec![&b"After"[..]; times]].concat();
        assert_eq!(types, wanted, "the events of key {key}");
    }
    outbox.drop().await;
}

/// The blocks of large values that were read or written, as far as the sessions have reported them.
const LARGE_BLOCKS: &str = "SELECT (toast_blks_read + toast_blks_hit)::bigint FROM pg_statio_all_tables
                            WHERE relid = 'app.outbox'::regclass";

/// json has no binary cast to text, so a cast would read the whole payload for each read of the row.
#[tokio::test]
async fn a_payload_that_is_too_large_is_not_read_to_find_that_out() {
    let outbox = Outbox::create("huge_payload", 1).await;
    // Vacuum reads the blocks, too.
    let quiet = "ALTER TABLE app.outbox SET (autovacuum_enabled = off, toast.autovacuum_enabled = off)";
    run(&outbox.client, quiet).await;
    let writer = outbox.database.connect().await;
    let payload = format!(
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '1', 'E', to_json({RANDOM}))"
    );
    run(&writer, &payload).await;
    drop(writer);
    wait_until("the writer has reported its blocks", STALLED, async || {
        outbox.count(LARGE_BLOCKS).await > 2_000
    })
    .await;
    let before = outbox.count(LARGE_BLOCKS).await;

    let mut relay = outbox.relay().set("outbox", "on_rejected", "block-key").start().await;
    let blocked = "SELECT count(*) FROM app.outbox_blocked_key";
    wait_until("the key is blocked", STALLED, async || outbox.count(blocked).await == 1).await;
    insert(&outbox, "'order'", "'2'", "'After'", "NULL").await;
    wait_until("the other row is sent", STALLED, async || outbox.unsent().await == 1).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    wait_until("the relay's sessions have ended", STALLED, async || outbox.count(sessions).await == 0).await;
    let read = outbox.count(LARGE_BLOCKS).await - before;
    assert!(read < 100, "{read} blocks were read; the payload has more than 2,000");
    outbox.drop().await;
}
