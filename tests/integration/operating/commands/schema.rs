//! Schemas that do not match: exit code 78 with the remedy, and nothing is claimed.

use super::Setup;
use crate::support::database::run;
use outbox_relay::postgres::access::grants::{operator_grants, relay_grants};

const COMMANDS: [&[&str]; 12] = [
    &["run"],
    &["run", "--once"],
    &["status"],
    &["reap"],
    &["check-config", "--connect"],
    &["dead-letters", "list"],
    &["dead-letters", "requeue", "--all"],
    &["blocked-keys", "retry", "--all"],
    &["pause"],
    &["resume"],
    &["verify"],
    &["replay", "--all"],
];

fn all_fail(setup: &Setup, said: &[&str]) {
    for args in COMMANDS {
        setup.relay(args).fails(78, said);
    }
}

#[tokio::test]
async fn missing_schema_is_reported_with_the_command_that_creates_it() {
    let setup = Setup::empty("schema_missing").await;
    all_fail(&setup, &["app.outbox", "does not exist", "run `outbox-relay migrate --config FILE`"]);
    setup.drop(&[]).await;
}

#[tokio::test]
async fn newer_schema_requires_a_newer_binary() {
    let setup = Setup::migrated("schema_newer").await;
    setup.sql("INSERT INTO app.outbox_migration VALUES (9, 'later', 'x')").await;
    all_fail(&setup, &["migration 9 (later)", "upgrade this binary"]);
    setup.relay(&["migrate"]).fails(78, &["later"]);
    assert!(setup.relay(&["migrate", "--status"]).succeeds().contains("applied by a newer version"));
    setup.drop(&[]).await;
}

#[tokio::test]
async fn all_damage_is_reported_at_once_with_its_remedies() {
    let setup = Setup::migrated("schema_damaged").await;
    setup
        .sql(
            "DROP TABLE app.outbox_dead_letter; DROP INDEX app.outbox_pending; DELETE FROM app.outbox_lane WHERE lane \
             > 60",
        )
        .await;
    all_fail(
        &setup,
        &[
            "\"app\".\"outbox_dead_letter\": the table is missing",
            "CREATE INDEX CONCURRENTLY",
            "the table has only 61 of the 64 lanes",
            "INSERT INTO \"app\".\"outbox_lane\"",
        ],
    );
    setup.drop(&[]).await;
}

#[tokio::test]
async fn missing_grants_and_row_security_are_reported_with_the_statement() {
    let setup = Setup::migrated("schema_grants").await;
    let (role, _) = setup.database.connect_as_new_role().await;
    let table = "app.outbox".parse().unwrap();
    run(&setup.client, &(relay_grants(&table, &role) + &operator_grants(&table, &role))).await;
    setup.configure(&setup.database.url().replace("postgres@", &format!("{role}@")), &super::kafka());
    setup.relay(&["status"]).succeeds();
    setup.relay(&["check-config", "--connect"]).succeeds();

    setup.sql(&format!("REVOKE SELECT ON app.outbox_lane FROM {role}")).await;
    all_fail(&setup, &["lacks SELECT", &format!("GRANT SELECT ON \"app\".\"outbox_lane\" TO \"{role}\";")]);
    setup
        .sql(&format!(
            "GRANT SELECT ON app.outbox_lane TO {role}; ALTER TABLE app.outbox ENABLE ROW LEVEL SECURITY"
        ))
        .await;
    all_fail(&setup, &["row-level security can hide rows", "DISABLE ROW LEVEL SECURITY"]);
    setup.drop(&[&role]).await;
}
