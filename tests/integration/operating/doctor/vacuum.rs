//! Settings of autovacuum, and everything that holds vacuum back.

use super::World;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::postgres_server::{PostgresServer, Shutdown};
use crate::support::wait::{STALLED, wait_until};
use tokio_postgres::Client;

#[tokio::test]
async fn disabled_or_late_autovacuum_is_found() {
    let world = World::new("doctor_autovacuum").await;
    let alter = "ALTER TABLE app.outbox SET";
    let off = format!("{alter} (autovacuum_enabled = off)");
    world.found_and_fixed(&off, "autovacuum-off", "off for this table").await;
    let late = format!("{alter} (autovacuum_vacuum_threshold = 5000000)");
    world.found_and_fixed(&late, "autovacuum-late", "after 5000000 dead rows").await;
    // The row count that vacuum would have recorded.
    let large = "UPDATE pg_class SET reltuples = 100000000 WHERE oid = 'app.outbox'::regclass;
                 ALTER TABLE app.outbox RESET (autovacuum_vacuum_threshold, autovacuum_vacuum_scale_factor)";
    world.found_and_fixed(large, "autovacuum-late", "after 20000050 dead rows").await;
    if world.outbox.count("SELECT current_setting('server_version_num')::bigint").await >= 180_000 {
        let limited = "(autovacuum_vacuum_scale_factor = 0.2, autovacuum_vacuum_max_threshold = 1000000)";
        world.sql(&format!("{alter} {limited}")).await;
        world.doctor().has_not("autovacuum-late");
        world.sql(&format!("{alter} (autovacuum_vacuum_max_threshold = -1)")).await;
        world.doctor().has("autovacuum-late", "after 20001000 dead rows");
    }
    world.drop().await;
}

/// Begins many transactions, which are newer than the one that holds vacuum back.
async fn begin_many(client: &Client) {
    run(client, "SET synchronous_commit = off").await;
    let sql = "DO $$ BEGIN FOR i IN 1..51000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$";
    run(client, sql).await;
}

#[tokio::test]
async fn everything_that_holds_vacuum_back_for_long_is_found_and_ended() {
    let server = PostgresServer::start(&[]).await;
    let world = World::of(Outbox::create_on(&server, "doctor_holders", 1).await).await;
    let database = &world.outbox.database;

    let report = database.connect().await;
    run(&report, "SET application_name = 'the report'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        .await;
    world.doctor().has_not("long-transaction");
    begin_many(&world.outbox.client).await;
    let remedy = world.doctor().has("long-transaction", "transactions begun since");
    world.fix(&remedy).await;
    wait_until("the report has ended", STALLED, async || report.is_closed()).await;
    world.doctor().has_not("long-transaction");

    // While a writer is open, it also determines the snapshots of every other session, such as those of a relay.
    let job = database.connect().await;
    run(&job, "SET application_name = 'the night job'; BEGIN").await;
    run(&job, "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('a', 'b', 'c', '{}')")
        .await;
    let reader = database.connect().await;
    run(&reader, "SET application_name = 'a reader'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await;
    begin_many(&world.outbox.client).await;
    let doctor = world.doctor();
    doctor.has("long-transaction", "transactions begun since");
    let found = doctor.json.to_string();
    let writer = "the night job of postgres, which has written to the outbox";
    assert!(found.contains(writer) && !found.contains("a reader"), "{found}");
    run(&job, "ROLLBACK").await;
    run(&reader, "ROLLBACK").await;

    world.sql("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'it''s forgotten'").await;
    begin_many(&world.outbox.client).await;
    let remedy = world.doctor().has("prepared-transaction", "transactions begun since");
    world.fix(&remedy).await;
    world.doctor().has_not("prepared-transaction");
    world.doctor().has_not("autovacuum-off");

    world.sql("ALTER SYSTEM SET autovacuum = off").await;
    world.sql("SELECT pg_reload_conf()").await;
    let is_off = "SELECT count(*) FROM pg_settings WHERE name = 'autovacuum' AND setting = 'off'";
    wait_until("autovacuum is off", STALLED, async || world.outbox.count(is_off).await == 1).await;
    // As if nothing had been frozen in another database for a long time: one is enough to stop the server. Autovacuum would correct it.
    let frozen = "UPDATE pg_database SET datfrozenxid = $1 WHERE datname = 'postgres'";
    let kept = world
        .outbox
        .client
        .query_one("SELECT datfrozenxid::text FROM pg_database WHERE datname = 'postgres'", &[]);
    let kept: String = kept.await.unwrap().get(0);
    let old = "((pg_current_xact_id()::text::bigint + 4294967296 - 1500000000) % 4294967296)::text::xid";
    world.sql(&frozen.replace("$1", old)).await;
    let remedy = world.doctor().has("wraparound", "the oldest transaction that is not frozen is");
    assert!(remedy.contains("VACUUM (FREEZE)"), "{remedy}");
    world.sql(&frozen.replace("$1", &format!("'{kept}'"))).await;
    world.doctor().has_not("wraparound");

    let remedy = world.doctor().has("autovacuum-off", "off for all tables");
    world.fix(&remedy).await;
    wait_until("autovacuum is on", STALLED, async || world.outbox.count(is_off).await == 0).await;
    world.doctor().has_not("autovacuum-off");
    world.drop().await;
}

#[tokio::test]
async fn running_vacuum_is_not_reported() {
    let server = PostgresServer::start(&[]).await;
    let world = World::of(Outbox::create_on(&server, "doctor_slow_vacuum", 1).await).await;
    world.sql("CREATE TABLE app.slow WITH (autovacuum_enabled = off) AS SELECT generate_series(1, 100000) AS id").await;
    let client = world.outbox.database.connect().await;
    run(&client, "SET vacuum_cost_delay = 100; SET vacuum_cost_limit = 1").await;
    let vacuum = tokio::spawn(async move { client.batch_execute("VACUUM app.slow").await });
    let runs = "SELECT count(*) FROM pg_stat_progress_vacuum JOIN pg_stat_activity USING (pid)
                WHERE relid = 'app.slow'::regclass AND backend_xmin IS NOT NULL";
    wait_until("vacuum runs", STALLED, async || world.outbox.count(runs).await == 1).await;
    begin_many(&world.outbox.client).await;
    world.doctor().has_not("long-transaction");
    assert_eq!(world.outbox.count(runs).await, 1, "vacuum ran to its end");
    world.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_progress_vacuum").await;
    vacuum.await.unwrap().unwrap_err();
    world.drop().await;
}

#[tokio::test]
async fn query_on_a_standby_without_a_slot_is_found() {
    let server = PostgresServer::start(&[]).await;
    let world = World::of(Outbox::create_on(&server, "doctor_standby", 1).await).await;
    let standby = server.standby().await;
    let client = standby.connect().await;
    let query = standby.connect().await;
    run(&query, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await;
    for setting in ["hot_standby_feedback = on", "wal_receiver_status_interval = 1"] {
        run(&client, &format!("ALTER SYSTEM SET {setting}")).await;
    }
    run(&client, "SELECT pg_reload_conf()").await;
    let holds = "SELECT count(*) FROM pg_stat_replication WHERE backend_xmin IS NOT NULL";
    wait_until("the standby holds vacuum back", STALLED, async || world.outbox.count(holds).await == 1).await;
    begin_many(&world.outbox.client).await;
    let doctor = world.doctor();
    let remedy = doctor.has("long-transaction", "transactions begun since");
    assert!(remedy.contains("on that standby"), "{remedy}");
    let found = doctor.json.to_string();
    assert!(found.contains("standby pid "), "{found}");
    run(&client, "ALTER SYSTEM SET hot_standby_feedback = off").await;
    run(&client, "SELECT pg_reload_conf()").await;
    wait_until("vacuum is not held back", STALLED, async || world.outbox.count(holds).await == 0).await;
    world.doctor().has_not("long-transaction");
    world.drop().await;
}

#[tokio::test]
async fn slot_of_a_missing_standby_is_found_and_dropped() {
    let server = PostgresServer::start(&[]).await;
    let world = World::of(Outbox::create_on(&server, "doctor_slot", 1).await).await;
    world.sql("SELECT pg_create_physical_replication_slot('gone')").await;
    let mut standby = server.standby().await;
    let client = standby.connect().await;
    for setting in
        ["primary_slot_name = 'gone'", "hot_standby_feedback = on", "wal_receiver_status_interval = 1"]
    {
        run(&client, &format!("ALTER SYSTEM SET {setting}")).await;
    }
    run(&client, "SELECT pg_reload_conf()").await;
    let holds = "SELECT count(*) FROM pg_replication_slots WHERE xmin IS NOT NULL";
    wait_until("the slot holds vacuum back", STALLED, async || world.outbox.count(holds).await == 1).await;
    standby.stop(Shutdown::Crash);
    begin_many(&world.outbox.client).await;
    let inactive = "SELECT count(*) FROM pg_replication_slots WHERE NOT active";
    wait_until("the server has noticed that the standby is gone", STALLED, async || {
        world.outbox.count(inactive).await == 1
    })
    .await;
    let remedy = world.doctor().has("replication-slot", "the slot is not in use");
    world.fix(&remedy).await;
    world.doctor().has_not("replication-slot");
    world.drop().await;
}
