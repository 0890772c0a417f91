//! Adoptions that are interrupted, or run while an application writes.

use tokio_postgres::Client;

use super::adoption::catalog;
use super::world::{NAMES, TABLE, World};
use crate::support::command::Ended;
use crate::support::database::run;
use crate::support::wait::{STALLED, wait_until};

/// Lacks columns, indexes and constraints.
const LACKING: &str = "
CREATE SCHEMA app;
CREATE TABLE app.events (seq bigserial, kind text, ref text, name text, body json);
INSERT INTO app.events (kind, ref, name) SELECT 'order', n::text, 'Placed' FROM generate_series(1, 7000) AS n";
const LACKING_NAMES: [(&str, &str); 5] = [
    ("id", "seq"),
    ("aggregate_type", "kind"),
    ("aggregate_id", "ref"),
    ("event_type", "name"),
    ("payload", "body"),
];
const ADOPT: [&str; 4] = ["--adopt", "app.events", "--existing-rows", "sent"];

fn apply(world: &World) -> Ended {
    world.migrate(&[&ADOPT[..], &["--apply"]].concat())
}

/// The statements of the printed script, one by one, as psql sends them.
fn statements(script: &str) -> Vec<String> {
    let (mut statements, mut statement, mut quotes) = (Vec::new(), String::new(), 0);
    for line in script.lines().filter(|line| !line.starts_with("--")) {
        statement.push_str(line);
        statement.push('\n');
        quotes += line.matches("$$").count();
        let code = line.split(" --").next().unwrap().trim_end();
        if quotes % 2 == 0 && code.ends_with(';') {
            statements.push(std::mem::take(&mut statement));
        }
    }
    assert!(statement.trim().is_empty(), "{statement}");
    statements
}

/// After each statement, the connection is lost, and the command is run again.
#[tokio::test]
async fn adoption_that_stops_after_any_statement_is_completed_by_the_next_one() {
    let world = World::with("interrupted", LACKING, &LACKING_NAMES).await;
    let printed = world.migrate(&ADOPT);
    let statements = statements(printed.succeeds());
    apply(&world).succeeds();
    let expected = catalog(&world.client).await;
    // The statements of the companion tables are one transaction.
    let begins = statements.iter().rposition(|statement| statement.trim() == "BEGIN;").unwrap();
    assert!(begins >= 15, "{printed}");
    for stop in (5..=begins).chain([begins + 10, statements.len()]) {
        run(&world.client, "DROP SCHEMA app CASCADE").await;
        run(&world.client, LACKING).await;
        let client = world.database.connect().await;
        for statement in &statements[..stop] {
            run(&client, statement).await;
        }
        let lost: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let ended = "SELECT pg_terminate_backend($1, 30000)";
        assert!(world.client.query_one(ended, &[&lost]).await.unwrap().get::<_, bool>(0));
        let applied = apply(&world);
        let last = &statements[stop - 1];
        assert!(
            applied.succeeds().lines().last().is_some_and(|line| line.starts_with("app.events: ")),
            "{last}"
        );
        assert_eq!(catalog(&world.client).await, expected, "after {last}");
        assert_eq!(
            world.count("SELECT count(*) FROM app.events WHERE sent_at IS NOT NULL").await,
            7_000,
            "{last}"
        );
        assert_eq!(world.count("SELECT count(DISTINCT event_id) FROM app.events").await, 7_000, "{last}");
    }
    world.drop().await;
}

async fn wait_for_lock(client: &Client, query: &str) -> i32 {
    let sql = "SELECT max(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE $1";
    let mut pid = None;
    wait_until(&format!("{query} waits for a lock"), STALLED, async || {
        pid = client.query_one(sql, &[&query]).await.unwrap().get::<_, Option<i32>>(0);
        pid.is_some()
    })
    .await;
    pid.unwrap()
}

/// The build waits for the writer's transaction, and is canceled, or ends with the command. It leaves an invalid index.
#[tokio::test]
async fn index_whose_build_was_interrupted_is_built_again() {
    for (name, statement) in [("events_id_key", "CREATE UNIQUE INDEX%"), ("events_pending", "CREATE INDEX%")]
    {
        let world = World::with("interrupted_index", TABLE, &NAMES).await;
        let writer = world.database.connect().await;
        if name == "events_pending" {
            run(&world.client, "CREATE UNIQUE INDEX ON app.events (\"seq no\"); ALTER TABLE app.events ALTER \"Key\" SET NOT NULL").await;
        }
        run(&writer, "BEGIN; INSERT INTO app.events (topic, \"Key\", type) VALUES ('order', '1', 'Placed')")
            .await;
        let publish = ["--adopt", "app.events", "--apply", "--existing-rows", "publish"];
        let mut adopting = world.owner().spawn(&[&["migrate"], &publish[..]].concat());
        let pid = wait_for_lock(&world.client, statement).await;
        // Inserts do not wait for the build.
        run(&world.client, "SET lock_timeout = '1ms'; INSERT INTO app.events (topic, \"Key\", type) VALUES ('order', '2', 'Placed')").await;
        if name == "events_id_key" {
            run(&world.client, &format!("SELECT pg_cancel_backend({pid})")).await;
            assert_eq!(adopting.ended().await.code(), Some(1), "{}", adopting.log());
            assert!(adopting.log().contains("run the command again"), "{}", adopting.log());
        } else {
            let announced = "next step, which may wait for other transactions: create the pending index";
            assert!(adopting.log().contains(announced), "{}", adopting.log());
            adopting.kill();
            let ended = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
            wait_until("the build has ended", STALLED, async || world.count(&ended).await == 0).await;
        }
        let invalid = format!(
            "SELECT count(*) FROM pg_index WHERE indexrelid = 'app.{name}'::regclass AND NOT indisvalid"
        );
        assert_eq!(world.count(&invalid).await, 1);
        run(&writer, "COMMIT").await;
        let applied = world.migrate(&publish);
        assert!(
            applied.succeeds().contains(&format!("drop the index {name}, whose build was interrupted")),
            "{applied}"
        );
        assert_eq!(world.count(&invalid).await, 0);
        world.drop().await;
    }
}

#[tokio::test]
async fn adoption_does_not_wait_for_a_transaction_that_blocks_reads() {
    let world = World::with("adopt_unreadable", LACKING, &LACKING_NAMES).await;
    run(&world.client, "BEGIN; LOCK TABLE app.events").await;
    apply(&world)
        .fails(1, &["app.events could not be read within 5 s, because another transaction has locked it"]);
    run(&world.client, "COMMIT").await;
    apply(&world).succeeds();
    world.drop().await;
}

#[tokio::test]
async fn adoption_waits_briefly_for_a_writer_and_tries_again() {
    let world = World::with("adopt_locked", LACKING, &LACKING_NAMES).await;
    let writer = world.database.connect().await;
    run(&writer, "BEGIN; INSERT INTO app.events (kind, ref, name) VALUES ('order', '1', 'Placed')").await;
    let mut adopting =
        world.owner().spawn(&["migrate", "--adopt", "app.events", "--existing-rows", "sent", "--apply"]);
    wait_for_lock(&world.client, "%ADD COLUMN%").await;
    // It waits behind the statement, which gives up soon.
    run(
        &world.client,
        "SET lock_timeout = '60s'; INSERT INTO app.events (kind, ref, name) VALUES ('order', '2', 'Placed')",
    )
    .await;
    assert!(adopting.is_running());
    run(&writer, "COMMIT").await;
    assert!(adopting.ended().await.success(), "{}", adopting.log());
    assert_eq!(world.count("SELECT count(*) FROM app.events WHERE sent_at IS NULL").await, 0);
    world.drop().await;
}

/// A `transaction_timeout` would end the session while a step waits for a lock.
#[tokio::test]
async fn transaction_timeout_of_the_database_does_not_end_an_adoption() {
    let world = World::with("adopt_timeout", LACKING, &LACKING_NAMES).await;
    let writer = world.database.connect().await;
    if world.count("SELECT current_setting('server_version_num')::bigint").await >= 170_000 {
        let set = format!("ALTER DATABASE \"{}\" SET transaction_timeout = '700ms'", world.database.name());
        run(&world.client, &set).await;
    }
    run(&writer, "BEGIN; INSERT INTO app.events (kind, ref, name) VALUES ('order', '1', 'Placed')").await;
    let mut adopting =
        world.owner().spawn(&["migrate", "--adopt", "app.events", "--existing-rows", "sent", "--apply"]);
    wait_for_lock(&world.client, "%ADD COLUMN%").await;
    let waiting = "SELECT count(*) FROM pg_stat_activity
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    wait_until("the step gives up", STALLED, async || world.count(waiting).await == 0).await;
    run(&writer, "COMMIT").await;
    assert!(adopting.ended().await.success(), "{}", adopting.log());
    world.drop().await;
}

/// The next statement of a session that has ended fails only with "connection closed".
#[tokio::test]
async fn adoption_whose_session_is_terminated_reports_the_reason() {
    let world = World::with("adopt_terminated", TABLE, &NAMES).await;
    let writer = world.database.connect().await;
    run(&writer, "BEGIN; INSERT INTO app.events (topic, \"Key\", type) VALUES ('order', '1', 'Placed')")
        .await;
    let mut adopting =
        world.owner().spawn(&["migrate", "--adopt", "app.events", "--apply", "--existing-rows", "publish"]);
    let pid = wait_for_lock(&world.client, "CREATE UNIQUE INDEX%").await;
    run(&world.client, &format!("SELECT pg_terminate_backend({pid})")).await;
    assert_eq!(adopting.ended().await.code(), Some(69), "{}", adopting.log());
    assert!(adopting.log().contains("SQLSTATE 57P01"), "{}", adopting.log());
    run(&writer, "COMMIT").await;
    world.drop().await;
}

/// A constraint that the rows violate would reject the application's next inserts.
#[tokio::test]
async fn constraint_that_rows_violate_does_not_stay() {
    let world = World::with("adopt_null", LACKING, &LACKING_NAMES).await;
    let (writer, waiting) = (world.database.connect().await, world.database.connect().await);
    // The key is NULL in a row that is committed between the check and the constraint.
    run(&writer, "BEGIN; INSERT INTO app.events (kind, ref, name) VALUES ('order', NULL, 'Placed')").await;
    let mut adopting =
        world.owner().spawn(&["migrate", "--adopt", "app.events", "--existing-rows", "sent", "--apply"]);
    wait_for_lock(&waiting, "%ADD COLUMN%").await;
    run(&writer, "COMMIT").await;
    assert_eq!(adopting.ended().await.code(), Some(1), "{}", adopting.log());
    assert!(adopting.log().contains("Rows with NULL were inserted meanwhile"), "{}", adopting.log());
    assert_eq!(
        world.count("SELECT count(*) FROM pg_constraint WHERE conname = 'outbox_relay_not_null'").await,
        0
    );
    apply(&world).fails(78, &["column ref ([outbox.columns] aggregate_id): it is NULL in some rows"]);
    run(&world.client, "UPDATE app.events SET ref = '1' WHERE ref IS NULL").await;
    apply(&world).succeeds();
    world.drop().await;
}
