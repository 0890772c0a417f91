//! The rows of the modules belong to services. No service reads, uses or locks out the rows of another one.

use postgres::table::Module;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::operating::commands::Setup;
use crate::support::database::run;

const MODULES: &[&str] = &["migrate", "--with", "inbox,idempotency,once"];

/// The printed roles with all modules, and logins that are members of the groups of the modules.
async fn setup<const N: usize>(name: &str) -> (Setup, [(String, Client); N]) {
    let setup = Setup::migrated(name).await;
    setup.relay(MODULES).succeeds();
    print_roles(&setup).await;
    let mut logins = Vec::new();
    for _ in 0..N {
        let (role, client) = setup.database.connect_as_new_role().await;
        run(&setup.client, &format!("GRANT {} TO {role}", groups(&setup).join(", "))).await;
        logins.push((role, client));
    }
    let Ok(logins) = logins.try_into() else { unreachable!("there are N logins") };
    (setup, logins)
}

async fn print_roles(setup: &Setup) {
    let printed = setup.relay(&["migrate", "--print-roles", "--role", setup.roles().relay()]);
    run(&setup.client, printed.succeeds()).await;
}

fn groups(setup: &Setup) -> Vec<String> {
    Module::ALL.map(|module| setup.roles().module(module)).into()
}

async fn drop(setup: Setup, logins: &[&str]) {
    let groups = groups(&setup);
    setup.drop(&logins.iter().copied().chain(groups.iter().map(String::as_str)).collect::<Vec<_>>()).await;
}

async fn text(client: &Client, sql: &str) -> Option<String> {
    client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

/// A request with a response that no other service may see.
const PAY: &str = "
DO $$ BEGIN
    PERFORM app.idempotency_finish('POST /pay', 'k', token, 201, '{}', 'iban DE89')
    FROM app.idempotency_begin('POST /pay', 'k', sha256('x'), '1 minute', 'card 4111');
END $$;
SELECT app.inbox_receive('billing', 'e-1'), app.once_claim('invoices', '1 day')";

/// What a service finds.
const FOUND: &str = "
SELECT concat_ws(' ', (SELECT outcome FROM app.idempotency_begin('POST /pay', 'k', sha256('x'), '1 minute')),
                 (SELECT convert_from(body, 'UTF8')
                  FROM app.idempotency_begin('POST /pay', 'k', sha256('x'), '1 minute')),
                 app.inbox_receive('billing', 'e-1'), app.once_claim('invoices', '1 day'))";

#[tokio::test]
async fn a_service_cannot_read_forge_delete_or_lock_out_the_rows_of_another_one() {
    let (setup, [(billing, bill), (shop, attacker)]) = setup("service_apart").await;
    run(&bill, PAY).await;
    // What an attacker did with the privileges of earlier versions.
    for attack in [
        "SELECT request, body FROM app.idempotency_key",
        "UPDATE app.idempotency_key SET body = 'iban ATTACKER'",
        "DELETE FROM app.idempotency_key",
        "INSERT INTO app.processed_message (subscriber, event_id) VALUES ('billing', 'e-2')",
        "UPDATE app.once_key SET expires_at = 'infinity'",
        "INSERT INTO app.inbox_service VALUES ('x')",
        "SELECT app.inbox_reap('0 s', 10)",
        "SELECT app.idempotency_owner()",
    ] {
        let error = attacker.batch_execute(attack).await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{attack}: {error:?}");
    }
    // What an attacker could do with the functions alone: the attacker's rows are others.
    run(
        &attacker,
        "SELECT app.inbox_receive('billing', 'e-2'), app.once_claim('reports', '10 years');
         SELECT app.idempotency_begin('POST /pay', 'k-2', sha256('x'), '30 days')",
    )
    .await;
    assert_eq!(text(&attacker, FOUND).await.unwrap(), "started t t", "nothing of billing");
    assert_eq!(text(&bill, FOUND).await.unwrap(), "replay iban DE89 f f");
    assert_eq!(
        text(
            &bill,
            "SELECT concat_ws(' ', app.inbox_receive('billing', 'e-2'), app.once_claim('reports', '1 day'),
                (SELECT outcome FROM app.idempotency_begin('POST /pay', 'k-2', sha256('x'), '1 minute')))"
        )
        .await
        .unwrap(),
        "t t started"
    );
    // Another one's abandoned request is not returned.
    setup.sql("UPDATE app.idempotency_key SET locked_until = now()").await;
    let abandoned = "SELECT count(*)::text FROM app.idempotency_abandoned('0 s', '1 minute', 100, 20)";
    assert_eq!(text(&bill, abandoned).await.unwrap(), "1");
    drop(setup, &[&billing, &shop]).await;
}

/// `SET ROLE` changes nothing: the role that logged in counts.
#[tokio::test]
async fn logins_of_a_registered_service_share_its_rows_and_others_do_not() {
    let (setup, [(blue, first), (green, second), (red, third)]) = setup("service_rotation").await;
    let service = format!("{blue}_service");
    setup.sql(&format!("CREATE ROLE {service}; GRANT {service} TO {blue}, {green}")).await;
    for module in Module::ALL {
        setup.sql(&format!("INSERT INTO app.{module}_service (service) VALUES ('{service}')")).await;
    }
    run(&first, &format!("SET ROLE {service}; RESET ROLE; {PAY}")).await;
    assert_eq!(text(&second, FOUND).await.unwrap(), "replay iban DE89 f f", "after the rotation");
    assert_eq!(text(&third, FOUND).await.unwrap(), "started t t", "not a member");
    let owners = "SELECT string_agg(DISTINCT owner, ' ' ORDER BY owner) FROM app.processed_message";
    let mut expected = [service.clone(), red.clone()];
    expected.sort();
    assert_eq!(text(&setup.client, owners).await.unwrap(), expected.join(" "));

    let other = format!("{red}_other");
    setup
        .sql(&format!(
            "CREATE ROLE {other}; GRANT {other} TO {blue}; INSERT INTO app.inbox_service VALUES ('{other}')"
        ))
        .await;
    let error = first.batch_execute("SELECT app.inbox_receive('billing', 'e-3')").await.unwrap_err();
    assert_eq!(error.code().map(SqlState::code), Some("28000"), "{error:?}");
    let message = error.as_db_error().unwrap().message().to_owned();
    assert!(message.contains("is a member of several services"), "{message}");
    drop(setup, &[&blue, &green, &red, &service, &other]).await;
}

/// Undoes all migrations of each module but the first, as far as a test needs it: the schema of c4365498, with its privileges.
const EARLIER: &str = "
ALTER TABLE app.processed_message DROP COLUMN owner, ADD PRIMARY KEY (subscriber, event_id);
ALTER TABLE app.idempotency_key DROP COLUMN owner, ADD PRIMARY KEY (scope, key);
ALTER TABLE app.once_key DROP COLUMN owner, ADD PRIMARY KEY (key);
DROP TABLE app.inbox_service, app.idempotency_service, app.once_service;
DROP FUNCTION app.inbox_owner, app.idempotency_owner, app.once_owner, app.idempotency_release;
DELETE FROM app.pg_outbox_migration WHERE number > 1";

#[tokio::test]
async fn upgrade_keeps_the_rows_and_the_members_of_the_writers() {
    let setup = Setup::migrated("service_upgrade").await;
    setup.relay(MODULES).succeeds();
    run(&setup.client, EARLIER).await;
    let writer = setup.roles().writer();
    setup
        .sql(&format!(
            "GRANT USAGE ON SCHEMA app TO {writer}; GRANT SELECT, INSERT ON app.processed_message TO {writer};
             GRANT SELECT, INSERT, UPDATE, DELETE ON app.idempotency_key TO {writer};
             GRANT SELECT, INSERT, UPDATE ON app.once_key TO {writer};
             INSERT INTO app.processed_message VALUES ('billing', 'e-1');
             INSERT INTO app.once_key VALUES ('invoices', now(), now() + interval '1 day');
             INSERT INTO app.idempotency_key (scope, key, fingerprint, locked_until, finished_at, status, body)
             VALUES ('POST /pay', 'k', sha256('x'), now(), now(), 201, 'iban DE89')"
        ))
        .await;
    let (billing, bill) = setup.database.connect_as_new_role().await;
    setup.sql(&format!("GRANT {writer} TO {billing}")).await;

    // After the migration alone, and after the roles were printed again.
    setup.relay(MODULES).succeeds();
    assert_eq!(text(&bill, FOUND).await.unwrap(), "replay iban DE89 f f");
    let error = bill.batch_execute("SELECT body FROM app.idempotency_key").await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{error:?}");
    print_roles(&setup).await;
    assert_eq!(text(&bill, FOUND).await.unwrap(), "replay iban DE89 f f");
    let direct = format!(
        "SELECT bool_or(pg_has_role('{billing}', oid, 'MEMBER'))::text FROM pg_roles WHERE rolname = '{}'",
        groups(&setup)[0]
    );
    assert_eq!(text(&setup.client, &direct).await.unwrap(), "true");

    // A writer that is added later gets no module.
    let (shop, later) = setup.database.connect_as_new_role().await;
    setup.sql(&format!("GRANT {writer} TO {shop}")).await;
    print_roles(&setup).await;
    let error = later.batch_execute(FOUND).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{error:?}");
    drop(setup, &[&billing, &shop]).await;
}

/// `ALTER DEFAULT PRIVILEGES` in favor of all applications is common.
#[tokio::test]
async fn default_privileges_give_no_access_to_the_modules() {
    let setup = Setup::migrated("service_defaults").await;
    let (apps, client) = setup.database.connect_as_new_role().await;
    setup
        .sql(&format!(
            "GRANT USAGE ON SCHEMA app TO {apps};
             ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT ALL ON TABLES TO {apps};
             ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT EXECUTE ON FUNCTIONS TO {apps}"
        ))
        .await;
    setup.relay(MODULES).succeeds();
    for refused in [
        "SELECT FROM app.idempotency_key",
        "SELECT FROM app.inbox_service",
        "DELETE FROM app.once_key",
        "SELECT app.inbox_reap('0 s', 1)",
        "SELECT app.idempotency_owner()",
    ] {
        let error = client.batch_execute(refused).await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{refused}: {error:?}");
    }
    setup.drop(&[&apps]).await;
}
