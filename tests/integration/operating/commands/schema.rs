//! Schemas that do not match: exit code 78 with the remedy, and nothing is claimed.

use super::{Ended, Setup, binary};
use crate::support::database::run;
use postgres::access::grants::{operator_grants, relay_grants};

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
    all_fail(&setup, &["app.outbox", "does not exist", "run `outbox-relay migrate --config "]);
    setup.drop(&[]).await;
}

#[tokio::test]
async fn newer_schema_requires_a_newer_binary() {
    let setup = Setup::migrated("schema_newer").await;
    setup.sql("INSERT INTO app.outbox_migration VALUES (9, 'later', 'x', now(), '99.0.0')").await;
    all_fail(&setup, &["migration 9 (later)", "upgrade this binary to 99.0.0 or later"]);
    setup.relay(&["doctor"]).fails(1, &["migration 9 (later)", "upgrade this binary to 99.0.0 or later"]);
    setup.relay(&["migrate"]).fails(78, &["later", "99.0.0 or later"]);
    let states = setup.relay(&["migrate", "--status"]);
    assert!(states.succeeds().contains("applied by a newer version, needs outbox-relay 99.0.0 or later"));
    setup.drop(&[]).await;
}

/// The commands that read or change the outbox, except `run`.
fn all_warn(setup: &Setup, warning: &str) {
    for args in COMMANDS.iter().filter(|args| !["run", "check-config"].contains(&args[0])) {
        let ended = setup.relay(args);
        ended.succeeds();
        assert_eq!(ended.stderr.matches(warning).count(), 1, "{ended}");
    }
}

/// `doctor`, with the relay's role.
fn doctor(setup: &Setup) -> Ended {
    Ended::of(binary(&["doctor"]).arg("--config").arg(setup.config()))
}

#[tokio::test]
async fn migrations_before_a_failed_one_stay_applied_and_are_listed() {
    let setup = Setup::empty("schema_partly").await;
    setup.sql("CREATE SCHEMA app; CREATE TABLE app.outbox_setting ()").await;
    setup.relay(&["migrate"]).fails(78, &["0001 outbox ", "\"outbox_setting\" already exists"]);
    setup.sql("DROP TABLE app.outbox_setting").await;
    let rest = setup.relay(&["migrate"]);
    assert!(rest.succeeds().starts_with("0002 setting "), "{rest}");
    setup.drop(&[]).await;
}

#[tokio::test]
async fn commands_work_on_a_newer_schema_that_allows_their_version() {
    let setup = Setup::migrated("schema_newer_allowed").await;
    setup.sql("INSERT INTO app.outbox_migration VALUES (9, 'later', 'x', now(), '0.1.0')").await;
    all_warn(&setup, "warning: the schema is newer than outbox-relay");
    let word = "schema-newer";
    assert!(doctor(&setup).succeeds().contains(word));
    assert!(setup.relay(&["check-config", "--connect"]).succeeds().contains("migration 9 (later)"));
    assert!(setup.relay(&["migrate"]).succeeds().contains("up to date"));
    setup.relay(&["run", "--once"]).succeeds();
    setup.drop(&[]).await;
}

#[tokio::test]
async fn commands_work_on_an_older_schema_if_the_tables_that_they_need_exist() {
    let setup = Setup::migrated("schema_older").await;
    setup.sql("DELETE FROM app.outbox_migration WHERE number = 7").await;
    all_warn(&setup, "migration 7 (privileges) is pending. To apply it, run `outbox-relay migrate");
    let pending = "migration 7 (privileges) is not applied";
    setup.relay(&["run", "--once"]).fails(78, &[pending, "run `outbox-relay migrate"]);
    setup.relay(&["check-config", "--connect"]).fails(78, &[pending, "the relay waits", "by itself"]);
    // The checks after that of the schema.
    setup.sql("ALTER TABLE app.outbox SET (autovacuum_enabled = off)").await;
    doctor(&setup).fails(1, &[pending, "autovacuum-off"]);

    setup.sql("DROP TABLE app.outbox_dead_letter; DROP INDEX app.outbox_pending").await;
    setup.relay(&["pause"]).succeeds();
    let missing = "\"app\".\"outbox_dead_letter\": the table is missing, because a migration is not applied";
    setup.relay(&["dead-letters", "list"]).fails(78, &[missing, "run `outbox-relay migrate"]);
    setup.drop(&[]).await;
}

/// A running relay continues, so operators must be able to pause it.
#[tokio::test]
async fn commands_work_while_the_sequence_is_behind() {
    let setup = Setup::migrated("schema_sequence").await;
    setup
        .sql(
            "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', '1', 'E');
               SELECT setval('app.outbox_id_seq', 1, false)",
        )
        .await;
    for args in COMMANDS.iter().filter(|args| !["run", "check-config"].contains(&args[0])) {
        let ended = setup.relay(args);
        if args.contains(&"requeue") {
            ended.fails(78, &["the sequence is behind"]); // its events would get lower IDs than those that wait
        } else {
            ended.succeeds();
            assert_eq!(ended.stderr.matches("warning: a relay does not start:").count(), 1, "{ended}");
        }
    }
    setup.relay(&["run", "--once"]).fails(78, &["the sequence is behind"]);
    setup.relay(&["check-config", "--connect"]).fails(78, &["the sequence is behind"]);

    // To compare it without an index, the server would read the whole table.
    setup.sql("ALTER TABLE app.outbox DROP CONSTRAINT outbox_pkey").await;
    let ended = setup.relay(&["check-config", "--connect"]);
    ended.fails(78, &["no unique index finds rows by it"]);
    assert!(!ended.stderr.contains("the sequence is behind"), "{ended}");
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

#[tokio::test]
async fn table_whose_name_looks_like_a_placeholder_works() {
    let setup = Setup::empty("braces").await;
    for table in ["app.\"a{lane}b\"", "app.\"{schema}\"", "app.\"{sequence}\""] {
        for args in [&["migrate"][..], &["status"], &["run", "--once"]] {
            Ended::of(setup.command(args).env("OUTBOX_RELAY__OUTBOX__TABLE", table)).succeeds();
        }
    }
}

/// The role or the database may have any setting.
#[tokio::test]
async fn schema_is_valid_although_the_database_quotes_all_identifiers() {
    let setup = Setup::migrated("quoted").await;
    setup.sql(&format!("ALTER DATABASE \"{}\" SET quote_all_identifiers = on", setup.database.name())).await;
    setup.relay(&["check-config", "--connect"]).succeeds();
    setup.relay(&["run", "--once"]).succeeds();
    setup.relay(&["status"]).succeeds();
    setup.relay(&["migrate", "--status"]).succeeds();
}
