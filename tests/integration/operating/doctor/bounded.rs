//! `status` and `doctor` never write, and read only a bounded part of a large table.

use super::World;
use crate::support::outbox::Outbox;
use crate::support::postgres_server::PostgresServer;
use crate::support::wait::{STALLED, wait_until};

const ROWS: i64 = 400_000;
/// The limits of all statements together: 10,001 rows of the backlog, 100 and 100 of each lane, and a few thousand
/// others.
const ROWS_READ_MAX: i64 = 45_000;

/// No other client assigns transaction ids on this server, so a single new id means that something was written.
#[tokio::test]
async fn status_and_doctor_write_nothing() {
    let server = PostgresServer::start(&[("autovacuum", "off")]).await;
    let world = World::of(Outbox::create_on(&server, "doctor_reads", 1).await).await;
    world.sql(super::EVENT).await;
    let assigned = async || {
        let sql = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
        world.outbox.count(sql).await
    };
    let before = assigned().await;
    world.doctor().has("autovacuum-off", "all tables");
    world.relay.clone().command(&["status"]).succeeds();
    assert_eq!(assigned().await, before, "a transaction had an id");
    world.sql("UPDATE app.outbox SET sent_at = now()").await;
    assert!(assigned().await > before, "what is written has one");
    world.drop().await;
}

#[tokio::test]
async fn only_a_bounded_part_of_a_large_table_is_read() {
    let world = World::new("doctor_bounded").await;
    world
        .sql(&format!(
            "ALTER TABLE app.outbox SET (autovacuum_enabled = off);
             INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, sent_at)
             SELECT 'order', 'order-' || n % 10000, 'X', CASE WHEN n % 2 = 0 THEN now() END
             FROM generate_series(1, {ROWS}) AS n"
        ))
        .await;
    // The reads of a connection are counted at the latest when it ends, and the connections of the commands have ended.
    let read = "SELECT (coalesce(sum(idx_tup_fetch), 0) + coalesce(sum(seq_tup_read), 0))::bigint
                FROM pg_stat_user_tables WHERE relid = 'app.outbox'::regclass";
    for command in ["status", "doctor"] {
        let before = world.outbox.count(read).await;
        let ended = world.relay.clone().command(&[command]);
        assert!([0, 1].contains(&ended.code), "{ended}");
        wait_until("the command's connections are counted", STALLED, async || {
            world.outbox.count(read).await > before
        })
        .await;
        let rows = world.outbox.count(read).await - before;
        println!("{command} read {rows} of {ROWS} rows");
        assert!(rows <= ROWS_READ_MAX, "{command} read {rows} rows");
    }
    let scans = "SELECT seq_scan FROM pg_stat_user_tables WHERE relid = 'app.outbox'::regclass";
    println!("{} sequential scans", world.outbox.count(scans).await);
    world.drop().await;
}
