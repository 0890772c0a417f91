//! The roles that `migrate --print-roles` prints. Each can do its work, and nothing else.

use postgres::table::Module;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::operating::commands::{Ended, Setup, binary, kafka};
use crate::support::database::{Database, run};
use crate::support::outbox::Outbox;

/// Tables in the schema of the outbox and in another one that do not belong to the outbox.
const OTHERS: &str = "CREATE TABLE app.customer (name text); CREATE TABLE public.invoice (total integer);
                      INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
                      VALUES ('order', '42', 'OrderPlaced', '{}', '{}');
                      INSERT INTO app.outbox_dead_letter (outbox_id, event_id, aggregate_type, aggregate_id, event_type,
                                                          created_at, topic, reason, error)
                      VALUES (7, gen_random_uuid(), 'order', '42', 'X', now(), 't', 'r', 'e');
                      INSERT INTO app.outbox_hold (topic, reason, error) VALUES ('t', 'r', 'e')";

/// Statements that none of the roles may run.
const FORBIDDEN_TO_ALL: [&str; 9] = [
    "SELECT * FROM app.customer",
    "SELECT * FROM public.invoice",
    "UPDATE app.outbox SET payload = NULL",
    "UPDATE app.outbox SET aggregate_id = '43'",
    "UPDATE app.outbox_act SET role = 'somebody'",
    "UPDATE app.outbox_hold_version SET version = 0",
    "TRUNCATE app.outbox",
    "CREATE TABLE app.mine ()",
    "INSERT INTO app.outbox_migration VALUES (7, 'x', 'x')",
];

async fn assert_refused(client: &Client, who: &str, sql: &str) {
    let Err(error) = client.batch_execute(sql).await else { panic!("{who} may {sql}") };
    assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{who}: {sql}: {error:?}");
}

/// A connection as a member of this group.
async fn member(setup: &Setup, group: &str) -> (String, Client) {
    let (role, client) = setup.database.connect_as_new_role().await;
    run(&setup.client, &format!("GRANT {group} TO {role}")).await;
    (role, client)
}

#[tokio::test]
async fn relay_reads_no_other_table_and_changes_and_inserts_no_event() {
    let setup = Setup::migrated("role_relay").await;
    run(&setup.client, OTHERS).await;
    let relay = setup.database.connect_as(setup.roles().relay()).await;
    for forbidden in FORBIDDEN_TO_ALL {
        assert_refused(&relay, "the relay", forbidden).await;
    }
    for forbidden in [
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('a', 'b', 'c')",
        "SELECT app.outbox_enqueue('a', 'b', 'c')",
        "SELECT payload FROM app.outbox_dead_letter",
        "SELECT headers FROM app.outbox_dead_letter",
        "UPDATE app.outbox_dead_letter SET reason = 'x'",
        "DELETE FROM app.outbox_dead_letter",
        "UPDATE app.outbox_hold SET topic = 'another'",
        "DELETE FROM app.outbox_blocked_key",
        "SELECT * FROM app.outbox_act",
        "INSERT INTO app.outbox_lane VALUES (7)",
        "DELETE FROM app.outbox_lane",
        "DELETE FROM app.outbox_setting",
    ] {
        assert_refused(&relay, "the relay", forbidden).await;
    }
    run(&relay, "UPDATE app.outbox SET sent_at = now(); SELECT payload FROM app.outbox").await;
    setup.drop(&[]).await;
}

#[tokio::test]
async fn writers_can_only_insert_events_and_read_their_ids() {
    let setup = Setup::migrated("role_writer").await;
    run(&setup.client, OTHERS).await;
    let (shop, client) = member(&setup, &setup.roles().writer()).await;
    for forbidden in FORBIDDEN_TO_ALL {
        assert_refused(&client, "a writer", forbidden).await;
    }
    for forbidden in [
        "SELECT payload FROM app.outbox",
        "SELECT aggregate_id FROM app.outbox",
        "SELECT sent_at FROM app.outbox",
        "SELECT id FROM app.outbox FOR UPDATE",
        "DELETE FROM app.outbox",
        "UPDATE app.outbox SET event_id = event_id",
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('a', 'b', 'c') RETURNING *",
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, sent_at) VALUES ('a', 'b', 'c', now())",
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, created_at) VALUES ('a', 'b', 'c', now())",
        "INSERT INTO app.outbox (id, aggregate_type, aggregate_id, event_type) OVERRIDING SYSTEM VALUE
         VALUES (1, 'a', 'b', 'c')",
        "SELECT * FROM app.outbox_lane FOR UPDATE",
        "SELECT * FROM app.outbox_dead_letter",
        "SELECT * FROM app.outbox_setting",
        "INSERT INTO app.outbox_setting (topic_template) VALUES ('x')",
    ] {
        assert_refused(&client, "a writer", forbidden).await;
    }
    run(
        &client,
        "SELECT app.outbox_template(); SELECT app.outbox_enqueue('order', '42', 'OrderPlaced', '{}', '{}');
         INSERT INTO app.outbox (event_id, aggregate_type, aggregate_id, event_type, payload, headers)
         VALUES (gen_random_uuid(), 'order', '42', 'OrderPlaced', '{}', '{}')
         RETURNING id, event_id",
    )
    .await;
    assert_eq!(setup.number("SELECT count(*) FROM app.outbox").await, 3);
    setup.drop(&[&shop]).await;
}

#[tokio::test]
async fn operators_cannot_forge_records_and_monitors_see_no_payload() {
    let setup = Setup::migrated("role_look").await;
    run(&setup.client, OTHERS).await;
    let (alice, operator) = member(&setup, &setup.roles().operator()).await;
    let (grafana, monitor) = member(&setup, &setup.roles().monitor()).await;
    for forbidden in FORBIDDEN_TO_ALL {
        assert_refused(&operator, "an operator", forbidden).await;
        assert_refused(&monitor, "monitoring", forbidden).await;
    }
    for forbidden in [
        "INSERT INTO app.outbox_act (act, outbox_id, event_id) VALUES ('discard', 1, gen_random_uuid())",
        "DELETE FROM app.outbox_act",
        "UPDATE app.outbox_dead_letter SET payload = NULL",
    ] {
        assert_refused(&operator, "an operator", forbidden).await;
    }
    for forbidden in [
        "SELECT payload FROM app.outbox",
        "SELECT headers FROM app.outbox",
        "SELECT payload FROM app.outbox_dead_letter",
        "SELECT headers FROM app.outbox_dead_letter",
        "SELECT * FROM app.outbox_act",
        "UPDATE app.outbox SET sent_at = now()",
        "DELETE FROM app.outbox_hold",
        "SELECT lane FROM app.outbox_lane FOR UPDATE",
    ] {
        assert_refused(&monitor, "monitoring", forbidden).await;
    }
    // The statements that the page about failures tells operators to run.
    run(&operator, "DELETE FROM app.outbox_hold WHERE topic = 't'; UPDATE app.outbox SET sent_at = NULL")
        .await;
    setup.configure(&setup.database.url_of(&grafana), &kafka());
    let status = setup.relay(&["status"]);
    assert!(status.succeeds().contains("unsent        1 row") && status.stdout.contains("dead letters  1"));
    setup.relay(&["dead-letters", "list"]).fails(78, &["GRANT SELECT ON \"app\".\"outbox_dead_letter\""]);
    setup.relay(&["reap"]).fails(78, &["GRANT DELETE ON \"app\".\"outbox\""]);
    setup.drop(&[&alice, &grafana]).await;
}

/// The catalog entries of these roles: their attributes and all of their privileges.
async fn privileges(client: &Client, role: &str) -> Vec<String> {
    let sql = "
SELECT format('%s %s %s %s', r.rolname, r.rolcanlogin, r.rolsuper,
              (SELECT array_agg(m.roleid::regrole ORDER BY 1) FROM pg_auth_members AS m WHERE m.member = r.oid))
FROM pg_roles AS r WHERE starts_with(r.rolname, $1)
UNION ALL
SELECT format('%s %s', c.relname, c.relacl) FROM pg_class AS c WHERE c.relnamespace = 'app'::regnamespace
UNION ALL
SELECT format('%s.%s %s', a.attrelid::regclass, a.attname, a.attacl) FROM pg_attribute AS a
JOIN pg_class AS c ON c.oid = a.attrelid WHERE c.relnamespace = 'app'::regnamespace AND a.attnum > 0
UNION ALL
SELECT format('%s %s', nspname, nspacl) FROM pg_namespace WHERE nspname = 'app'
ORDER BY 1";
    client.query(sql, &[&role]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn printed_roles_are_those_of_the_tests_and_can_be_applied_again() {
    let setup = Setup::migrated("role_again").await;
    let role = setup.roles().relay().to_owned();
    let printed = setup.relay(&["migrate", "--print-roles", "--role", &role]);
    let before = privileges(&setup.client, &role).await;
    assert!(before.len() > 40, "{before:#?}");
    run(&setup.client, printed.succeeds()).await;
    assert_eq!(privileges(&setup.client, &role).await, before, "applied twice");
    // Privileges beyond the printed ones are revoked.
    run(
        &setup.client,
        &format!(
            "GRANT ALL ON app.outbox, app.outbox_act TO {role}; GRANT UPDATE (payload) ON app.outbox TO {role};
             GRANT CREATE ON SCHEMA app TO {role}"
        ),
    )
    .await;
    assert_ne!(privileges(&setup.client, &role).await, before);
    run(&setup.client, &printed.stdout).await;
    assert_eq!(privileges(&setup.client, &role).await, before, "exactly these privileges");
    setup.drop(&[]).await;
}

#[tokio::test]
async fn owner_with_createrole_can_apply_it_without_being_a_superuser() {
    let database = Database::create("role_owner").await;
    let admin = database.connect().await;
    let (owner, mut client) = database.connect_as_new_role().await;
    let allow =
        format!("ALTER ROLE {owner} CREATEROLE; GRANT CREATE ON DATABASE {} TO {owner}", database.name());
    run(&admin, &allow).await;
    let table = r#"app."the outbox""#.parse().unwrap();
    postgres::schema::migrate::apply(&mut client, &table).await.unwrap();
    let role: postgres::access::roles::RelayRole = format!("{owner} it's 100%").parse().unwrap();
    run(&client, &postgres::access::roles::print(&table, &role, false)).await;
    let relay = database.connect_as(role.relay()).await;
    run(&relay, r#"SELECT payload FROM app."the outbox""#).await;
    let made =
        [role.relay(), &role.operator(), &role.monitor(), &role.writer()].map(|name| format!("\"{name}\""));
    let made: Vec<&str> = made.iter().map(String::as_str).chain([owner.as_str()]).collect();
    database.drop(&made).await;
}

/// Everything that an application calls, to its end.
const CALLS: &str = "
SELECT app.inbox_receive('balances', 'e-1'), app.inbox_receive_many('balances', ARRAY['e-1', 'e-2']);
SELECT app.once_claim('report', '1 day'), app.once_claim('report', '1 day');
SELECT app.idempotency_fingerprint('{}');
DO $$
DECLARE
    mine uuid := (SELECT token FROM app.idempotency_begin('s', 'k', sha256(''), '1 minute', 'secret'));
BEGIN
    PERFORM app.idempotency_extend('s', 'k', mine, '1 minute');
    PERFORM app.idempotency_reach('s', 'k', mine, 'charged', '{}', '1 minute');
    PERFORM app.idempotency_release('s', 'k', mine);
    mine := (SELECT token FROM app.idempotency_abandoned('0 s', '1 minute', 1, 20));
    PERFORM app.idempotency_finish('s', 'k', mine, 200, '{}', 'secret');
END $$";

/// One call of each module.
const CALLS_OF_MODULES: [&str; 3] = [
    "SELECT app.inbox_receive('balances', 'e-9')",
    "SELECT app.once_claim('job', '1 day')",
    "SELECT app.idempotency_begin('s', 'k-9', sha256(''), '1 minute')",
];

/// The statements of the reaper and of `reap`.
const REAPING: &str =
    "SELECT app.inbox_reap('0 s', 100), app.once_reap(100), app.idempotency_reap('0 s', 100);
                       SELECT * FROM app.idempotency_unfinished('1 day')";

/// Columns that only applications may read.
const SECRETS: [&str; 5] = [
    "SELECT request FROM app.idempotency_key",
    "SELECT body FROM app.idempotency_key",
    "SELECT headers FROM app.idempotency_key",
    "SELECT phases FROM app.idempotency_key",
    "UPDATE app.idempotency_key SET status = 500",
];

#[tokio::test]
async fn modules_work_with_these_roles_and_the_reaper_reads_no_response() {
    let setup = Setup::migrated("role_modules").await;
    let role = setup.roles().relay().to_owned();
    setup.relay(&["migrate", "--with", "inbox,idempotency,once"]).succeeds();
    // Excess privileges that were granted before are revoked.
    run(&setup.client, &format!("GRANT ALL ON app.idempotency_key, app.once_key TO {role}")).await;
    let printed = setup.relay(&["migrate", "--print-roles", "--role", &role]);
    run(&setup.client, printed.succeeds()).await;

    let (shop, writer) = member(&setup, &setup.roles().writer()).await;
    let groups = Module::ALL.map(|module| setup.roles().module(module));
    let (billing, service) = member(&setup, &groups.join(", ")).await;
    let (alice, operator) = member(&setup, &setup.roles().operator()).await;
    let (grafana, monitor) = member(&setup, &setup.roles().monitor()).await;
    let relay = setup.database.connect_as(&role).await;
    run(&service, CALLS).await;
    for forbidden in
        ["SELECT FROM app.processed_message", "DELETE FROM app.once_key", "SELECT app.inbox_reap('0 s', 1)"]
    {
        assert_refused(&service, "a service", forbidden).await;
        assert_refused(&writer, "a writer", forbidden).await;
    }
    for call in CALLS_OF_MODULES {
        assert_refused(&writer, "a writer", call).await;
    }
    for (who, client) in [("the relay", &relay), ("an operator", &operator), ("monitoring", &monitor)] {
        for secret in SECRETS {
            assert_refused(client, who, secret).await;
        }
        assert_refused(client, who, "SELECT app.inbox_receive('balances', 'e-3')").await;
    }
    assert_refused(&relay, "the relay", "SELECT event_id FROM app.processed_message").await;
    assert_refused(&relay, "the relay", "SELECT key FROM app.idempotency_key").await;
    assert_refused(&monitor, "monitoring", "DELETE FROM app.once_key").await;
    run(
        &operator,
        "SELECT scope, key, attempts FROM app.idempotency_key; SELECT * FROM app.processed_message",
    )
    .await;

    const ROWS: &str = "SELECT (SELECT count(*) FROM app.processed_message)
                             + (SELECT count(*) FROM app.idempotency_key WHERE finished_at IS NOT NULL)";
    assert_eq!(setup.number(ROWS).await, 3);
    run(&relay, REAPING).await;
    assert_eq!(setup.number(ROWS).await, 0, "reaped by the relay");
    run(&service, CALLS.replace("balances", "others").as_str()).await;
    run(&operator, REAPING).await;
    assert_eq!(setup.number(ROWS).await, 0, "reaped by an operator");
    let groups = groups.each_ref().map(String::as_str);
    setup.drop(&[&[&*shop, &billing, &alice, &grafana][..], &groups].concat()).await;
}

#[test]
fn invalid_role_name_is_refused() {
    let ended = |args: &[&str]| Ended::of(&mut binary(args));
    ended(&["migrate", "--print-roles", "--role", "pg_relay"]).fails(2, &["name is reserved"]);
    ended(&["migrate", "--role", "relay"]).fails(2, &["--print-roles"]);
    ended(&["migrate", "--print", "--print-roles"]).fails(2, &["cannot be used with"]);
}

#[tokio::test]
async fn relay_that_lacks_a_privilege_logs_the_grant_and_ends() {
    let outbox = Outbox::without_topics("role_lacks").await;
    let role = outbox.roles.relay().to_owned();
    let sql = postgres::access::grants::relay_grants(&"app.outbox".parse().unwrap(), &role);
    // The relay also starts without the privileges on its settings: tests/integration/service/recorded_template.rs.
    for grant in sql.lines().filter(|grant| !grant.contains("outbox_setting")) {
        let revoke = grant.replacen("GRANT", "REVOKE", 1).replace(" TO ", " FROM ");
        run(&outbox.client, &revoke).await;
        let mut relay = outbox.relay().spawn(&["run"]);
        assert_eq!(relay.ended().await.code(), Some(78), "{revoke}: {}", relay.log());
        assert!(relay.log().contains(grant), "{revoke}: {}", relay.log());
        run(&outbox.client, grant).await;
    }
    let mut relay = outbox.start_relay().await;
    assert!(!relay.log().contains("superuser"), "{}", relay.log());
    assert!(relay.stop().await.success());
    outbox.drop().await;
}

#[tokio::test]
async fn superuser_is_a_warning_with_the_command() {
    let outbox = Outbox::without_topics("role_superuser").await;
    let superuser = || outbox.relay().set("postgres", "url", outbox.database.url());
    let mut relay = superuser().start().await;
    let warning = relay.log().lines().find(|line| line.contains("superuser")).map(str::to_owned);
    let warning = warning.unwrap_or_else(|| panic!("{}", relay.log()));
    assert!(warning.contains("WARN") && warning.contains("migrate --print-roles"), "{warning}");
    assert!(relay.stop().await.success());
    let checked = superuser().command(&["check-config", "--connect"]);
    assert!(
        checked.succeeds().contains("warning        role postgres: the role is a superuser"),
        "{checked}"
    );
    let checked = outbox.relay().command(&["check-config", "--connect"]);
    assert!(!checked.succeeds().contains("superuser"), "{checked}");
    outbox.drop().await;
}
