//! Findings of the startup check, the plan of the claim, and indexes.

use super::World;
use crate::operating::commands::Setup;
use crate::support::outbox::Outbox;
use crate::support::postgres_server::PostgresServer;
use crate::support::wait::{STALLED, wait_until};

#[tokio::test]
async fn damaged_schema_is_found_and_fixed_by_the_proposed_statement() {
    let world = World::new("doctor_schema").await;
    let found = async |damage: &str, code: &str, problem: &str| {
        world.found_and_fixed(damage, code, problem).await;
    };
    found("DROP INDEX app.outbox_pending", "pending-index", "is missing").await;
    found(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'app.outbox_pending'::regclass",
        "pending-index",
        "is not valid",
    )
    .await;
    found("ALTER SEQUENCE app.outbox_id_seq CACHE 10", "sequence", "CACHE 10").await;
    found("ALTER SEQUENCE app.outbox_id_seq AS integer", "sequence-limit", "ends at 2147483647").await;
    found("DELETE FROM app.outbox_lane WHERE lane IN (0, 17)", "lanes", "only 62 of the 64 lanes").await;
    found("ALTER TABLE app.outbox_hold DISABLE TRIGGER hold_changed", "hold-count", "disabled").await;
    found("ALTER TABLE app.outbox DROP COLUMN headers", "column", "is missing").await;
    found("ALTER TABLE app.outbox SET UNLOGGED", "relation", "crash").await;
    found("ALTER TABLE app.outbox ENABLE ROW LEVEL SECURITY", "row-security", "can hide rows").await;
    let trigger = "CREATE FUNCTION app.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
                   CREATE TRIGGER keep BEFORE UPDATE OR DELETE ON app.outbox FOR EACH ROW EXECUTE FUNCTION app.keep()";
    world.sql(trigger).await;
    let remedy = world.doctor().has("outbox-trigger", "the trigger keep runs before");
    world.sql("DROP TRIGGER keep ON app.outbox; CREATE TRIGGER other BEFORE UPDATE OF headers ON app.outbox FOR EACH ROW
               EXECUTE FUNCTION app.keep()").await;
    assert!(remedy.contains("DROP TRIGGER keep ON"), "{remedy}");
    world.doctor().has_not("outbox-trigger");
    world.drop().await;
}

#[tokio::test]
async fn constraints_that_reject_what_the_relay_does_are_found() {
    let world = World::new("doctor_constraints").await;
    let found = async |damage: &str, problem: &str| {
        world.found_and_fixed(damage, "outbox-constraint", problem).await;
    };
    found("ALTER TABLE app.outbox ADD CONSTRAINT unsent CHECK (sent_at IS NULL)", "unsent checks sent_at")
        .await;
    let refers = "CREATE TABLE app.announced (event bigint CONSTRAINT announces REFERENCES app.outbox (id))";
    found(refers, "the foreign key announces of app.announced rejects").await;
    world.doctor().has_not("outbox-constraint");
    // Neither prevents an update or a delete of the relay.
    let harmless = "ALTER TABLE app.outbox ADD CONSTRAINT typed CHECK (event_type <> '');
                    ALTER TABLE app.announced ADD FOREIGN KEY (event) REFERENCES app.outbox (id) ON DELETE CASCADE";
    world.sql(harmless).await;
    world.doctor().has_not("outbox-constraint");
    world.drop().await;
}

#[tokio::test]
async fn missing_schema_is_reported_with_the_command_that_creates_it() {
    let setup = Setup::empty("doctor_empty").await;
    setup.relay(&["doctor"]).fails(1, &["error    ", "migration", "`outbox-relay migrate --config "]);
    setup.relay(&["migrate"]).succeeds();
    assert!(!setup.relay(&["doctor"]).succeeds().contains("error "));
    setup.drop(&[]).await;
}

#[tokio::test]
async fn database_with_another_encoding_is_found_and_no_relay_starts_there() {
    for encoding in ["SQL_ASCII", "LATIN1"] {
        let outbox = Outbox::without_topics_in("doctor_encoding", encoding).await;
        let found = super::Found::by(&outbox.relay());
        let remedy = found.has("encoding", &format!("its encoding is {encoding}"));
        assert!(remedy.contains("ENCODING 'UTF8'") && found.exit == 1, "{remedy}");
        for command in [&["run"][..], &["check-config", "--connect"]] {
            outbox.relay().command(command).fails(78, &["its encoding is", encoding, "ENCODING 'UTF8'"]);
        }
        outbox.drop().await;
    }
}

#[tokio::test]
async fn hidden_system_identifier_is_found() {
    let world = World::new("doctor_system").await;
    let function = "FUNCTION pg_catalog.pg_control_system()";
    world.doctor().has_not("system-identifier-hidden");
    world.sql(&format!("REVOKE EXECUTE ON {function} FROM PUBLIC")).await;
    world.doctor().has("system-identifier-hidden", "pg_control_system() is not available");
    world.sql(&format!("GRANT EXECUTE ON {function} TO PUBLIC")).await;
    world.doctor().has_not("system-identifier-hidden");
    world.drop().await;
}

#[tokio::test]
async fn standby_is_found() {
    let server = PostgresServer::start(&[]).await;
    let mut outbox = Outbox::create_on(&server, "doctor_standby", 1).await;
    let standby = server.standby().await;
    server.wait_until_replayed(&standby).await;
    outbox.database = outbox.database.on(&standby.url());
    super::Found::by(&outbox.relay()).has("standby", "cannot be written to");
    standby.promote().await;
    super::Found::by(&outbox.relay()).has_not("standby");
    outbox.drop().await;
}

/// The tests have no server that is too old. This one pretends to be, for the one role that finds another function
/// first.
#[tokio::test]
async fn server_that_is_too_old_is_found() {
    let world = World::new("doctor_old").await;
    world.doctor().has_not("server-too-old");
    // In this database, another function replaces the server's.
    world
        .sql(
            "ALTER FUNCTION pg_catalog.current_setting(text) RENAME TO real_setting;
             CREATE FUNCTION pg_catalog.current_setting(setting text) RETURNS text LANGUAGE sql AS $$
                 SELECT CASE setting WHEN 'server_version_num' THEN '130022' WHEN 'server_version' THEN '13.22'
                                     ELSE pg_catalog.real_setting(setting) END $$",
        )
        .await;
    let found = world.doctor();
    assert_eq!(found.has("server-too-old", "the server is PostgreSQL 13.22"), "upgrade it to 14 or later");
    assert_eq!(found.exit, 1);
    world.drop().await;
}

/// Other indexes and outdated statistics do not keep the claim from its index, so `doctor` has nothing to report.
#[tokio::test]
async fn claim_keeps_its_index_next_to_others() {
    let world = World::new("doctor_plan").await;
    let damage = "ALTER TABLE app.outbox SET (autovacuum_enabled = off);
                  CREATE INDEX by_lane ON app.outbox ((hashtext(aggregate_id) & 63));
                  CREATE INDEX unsent_by_id ON app.outbox (id) WHERE sent_at IS NULL;
                  INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type)
                  SELECT 'order', 'one', 'X' FROM generate_series(1, 20000);
                  ANALYZE app.outbox;
                  INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type)
                  SELECT 'order', i::text, 'X' FROM generate_series(1, 20000) AS i";
    world.sql(damage).await;
    world.doctor().has_not("claim-plan");
    world.drop().await;
}

#[tokio::test]
async fn unused_indexes_are_found() {
    let world = World::new("doctor_indexes").await;
    world
        .found_and_fixed(
            "CREATE INDEX left_over ON app.outbox (created_at);
             UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'app.left_over'::regclass",
            "index-invalid",
            "app.left_over is invalid",
        )
        .await;
    // REINDEX CONCURRENTLY was interrupted.
    let copy = "CREATE INDEX outbox_pending_ccnew ON app.outbox ((hashtext(aggregate_id) & 63), id) WHERE sent_at IS NULL;
                UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'app.outbox_pending_ccnew'::regclass";
    world.found_and_fixed(copy, "index-invalid", "app.outbox_pending_ccnew is invalid").await;
    // The pending index may have another name, and no relay has used it yet.
    let unused = "ALTER INDEX app.outbox_pending RENAME TO todo;
                  CREATE INDEX unused ON app.outbox (created_at);
                  INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type)
                  SELECT 'order', i::text, 'X' FROM generate_series(1, 2000) AS i";
    // The server counts the activity of a connection at the latest when it ends.
    let client = world.outbox.database.connect().await;
    crate::support::database::run(&client, unused).await;
    drop(client);
    wait_until("the statistics include the rows", STALLED, async || {
        let inserted = "SELECT n_tup_ins FROM pg_stat_user_tables WHERE relid = 'app.outbox'::regclass";
        world.outbox.count(inserted).await >= 2_000
    })
    .await;
    let remedy = world.doctor().has("index-unused", "app.unused");
    world.fix(&remedy).await;
    world.doctor().has_not("index-unused");
    world.drop().await;
}
