//! The optional modules: their migrations, and the reaper that keeps their tables small.

use postgres::access::grants::relay_grants;
use postgres::schema::errors::MigrateError;
use postgres::schema::migrate;
use postgres::schema::migrate::{Series, State};
use postgres::table::Module;
use postgres::table::TableName;
use tokio_postgres::Client;

use crate::operating::commands::Setup;
use crate::schema::migrate::{catalogue, psql};
use crate::support::command::Ended;
use crate::support::database::{Database, run, unique};
use crate::support::outbox::Outbox;
use crate::support::relay::RelayProcess;
use crate::support::wait::{STALLED, wait_until};

fn table(name: &str) -> TableName {
    name.parse().unwrap()
}

async fn apply(client: &mut Client, table: &TableName, module: Module) -> usize {
    let mut applied = Vec::new();
    migrate::apply_series(client, table, Series::Module(module), &mut applied).await.unwrap();
    applied.len()
}

/// The number of migrations of a module.
fn migrations_of(module: Module) -> usize {
    match module {
        Module::Inbox | Module::Once => 2,
        Module::Idempotency => 4,
    }
}

async fn exists(client: &Client, relation: &str) -> bool {
    client.query_one("SELECT to_regclass($1::text) IS NOT NULL", &[&relation]).await.unwrap().get(0)
}

#[tokio::test]
async fn module_is_created_once_per_schema_whatever_the_name_of_the_outbox() {
    let database = Database::create("module_once").await;
    let mut client = database.connect().await;
    for outbox in ["app.outbox", "app.other"] {
        migrate::apply(&mut client, &table(outbox)).await.unwrap();
    }
    for module in Module::ALL {
        let count = migrations_of(module);
        assert_eq!(apply(&mut client, &table("app.outbox"), module).await, count, "{module}");
        assert_eq!(apply(&mut client, &table("app.outbox"), module).await, 0, "{module} a second time");
        assert_eq!(apply(&mut client, &table("app.other"), module).await, 0, "{module} of the other outbox");
        assert_eq!(
            apply(&mut client, &table("second.outbox"), module).await,
            count,
            "{module} in another schema"
        );
        let states = migrate::status(&mut client, &table("app.other"), Series::Module(module)).await.unwrap();
        assert!(
            states.len() == count && states.iter().all(|known| matches!(known.state, State::Applied { .. }))
        );
    }
    database.drop(&[]).await;
}

#[tokio::test]
async fn modules_work_under_odd_names_and_a_changed_migration_is_refused() {
    let database = Database::create("module_odd").await;
    let mut client = database.connect().await;
    for name in [r#""My ""Schema""".outbox"#, r#""it's \ {inbox_reap}".outbox"#] {
        let outbox = table(name);
        for module in Module::ALL {
            let count = migrations_of(module);
            assert_eq!(apply(&mut client, &outbox, module).await, count, "{name}");
        }
        let sql = outbox.render(
            "SELECT {inbox_receive}('a', 'e'), {inbox_reap}('1 s', 1), {once_claim}('k', '1 s'), {once_reap}(1),
                    {idempotency_reap}('1 s', 1);
             SELECT {idempotency_begin}('s', 'k', sha256(''), '1 s')",
        );
        run(&client, &sql).await;
    }
    let changed = table(r#""My ""Schema""".outbox"#);
    run(&client, &changed.render("UPDATE {pg_outbox_migration} SET checksum = 'x' WHERE module = 'once'"))
        .await;
    let once = Series::Module(Module::Once);
    let error = migrate::apply_series(&mut client, &changed, once, &mut Vec::new()).await.unwrap_err();
    assert!(matches!(error, MigrateError::ChecksumDiffers { .. }), "{error}");
    assert_eq!(apply(&mut client, &changed, Module::Inbox).await, 0, "the other modules are unchanged");
    database.drop(&[]).await;
}

#[tokio::test]
async fn printed_sql_of_a_module_creates_the_same_schema_as_migrate() {
    let (applied, printed) =
        (Database::create("module_applied").await, Database::create("module_printed").await);
    let (mut one, two) = (applied.connect().await, printed.connect().await);
    for module in Module::ALL {
        apply(&mut one, &table("app.outbox"), module).await;
        psql(&printed, &migrate::print(&table("app.outbox"), Series::Module(module)));
    }
    let expected = catalogue(&one, "app").await;
    assert!(expected.len() > 40, "{expected:#?}");
    assert_eq!(catalogue(&two, "app").await, expected);
    let mut two = two;
    for module in Module::ALL {
        assert_eq!(apply(&mut two, &table("app.outbox"), module).await, 0, "{module}");
    }
    applied.drop(&[]).await;
    printed.drop(&[]).await;
}

#[tokio::test]
async fn migrate_creates_the_requested_modules() {
    let setup = Setup::empty("module_command").await;
    let dry = setup.relay(&["migrate", "--with", "inbox,once", "--dry-run"]);
    assert!(dry.succeeds().contains("0001 inbox (module inbox)     applied and rolled back"), "{dry}");
    assert!(!exists(&setup.client, "app.processed_message").await);
    let applied = setup.relay(&["migrate", "--with", "inbox,once"]);
    for line in
        ["0001 outbox                   applied", "0001 inbox (module inbox)     applied", "(module once)"]
    {
        assert!(applied.succeeds().contains(line), "{line}: {applied}");
    }
    assert!(setup.relay(&["migrate"]).succeeds().contains(": up to date"));
    let status = setup.relay(&["migrate", "--status"]);
    for line in [
        "0001 inbox (module inbox)     applied 20",
        "not installed. To create it, run: outbox-relay migrate --with idempotency",
    ] {
        assert!(status.succeeds().contains(line), "{line}: {status}");
    }
    let printed = setup.relay(&["migrate", "--print", "--with", "idempotency"]);
    assert!(printed.succeeds().contains("CREATE TABLE \"app\".\"outbox\" ("), "{printed}");
    assert!(printed.succeeds().contains("CREATE TABLE \"app\".\"idempotency_key\" ("), "{printed}");
    let mut unknown = setup.command(&["migrate", "--with", "mailbox"]);
    Ended::of(&mut unknown).fails(2, &["mailbox", "inbox, idempotency and once"]);
    // The relay accepts a schema with modules.
    setup.relay(&["check-config", "--connect"]).succeeds();
    // A migration of an installed module is pending after an upgrade of the relay.
    let forget = "DELETE FROM app.pg_outbox_migration WHERE module = 'inbox' AND number = 2";
    run(&setup.client, forget).await;
    let status = setup.relay(&["migrate", "--status"]);
    assert!(status.succeeds().contains("0002 owner (module inbox)     pending"), "{status}");
    setup.drop(&[]).await;
}

#[tokio::test]
async fn database_of_a_consumer_needs_no_outbox() {
    let setup = Setup::empty("module_only").await;
    setup.relay(&["migrate", "--only", "inbox"]).succeeds();
    assert!(exists(&setup.client, "app.processed_message").await);
    assert!(!exists(&setup.client, "app.outbox").await);
    assert!(setup.relay(&["migrate", "--only", "inbox"]).succeeds().contains(": up to date"));
    let printed = setup.relay(&["migrate", "--print", "--only", "inbox"]);
    let script = printed.succeeds().to_owned();
    run(&setup.client, "DROP SCHEMA app CASCADE").await;
    run(&setup.client, &script).await;
    assert!(exists(&setup.client, "app.processed_message").await);
    assert!(!exists(&setup.client, "app.outbox").await);
    setup.relay(&["migrate", "--only", "inbox", "--with", "once"]).fails(2, &["cannot be used with"]);
    let roles = ["migrate", "--print-roles", "--only", "inbox"];
    setup.relay(&[&roles[..], &["--with-stats"]].concat()).fails(2, &["cannot be used with"]);

    // The roles of an outbox do not exist, and are not created.
    let relay = unique("relay");
    let group = format!("{relay}_inbox");
    let printed = setup.relay(&[&roles[..], &["--role", &relay]].concat());
    run(&setup.client, printed.succeeds()).await;
    let (consumer, client) = setup.database.connect_as_new_role().await;
    run(&setup.client, &format!("GRANT {group} TO {consumer}")).await;
    run(&client, "SELECT app.inbox_receive('billing', 'e-1')").await;
    let created = format!("SELECT count(*) FROM pg_roles WHERE starts_with(rolname, '{relay}')");
    assert_eq!(setup.number(&created).await, 1);
    setup.drop(&[&consumer, &group]).await;
}

/// Old and recent rows of each module: 250 and 10.
const FILL: &str = "
INSERT INTO app.processed_message
SELECT 'a', i::text, now() - CASE WHEN i <= 250 THEN interval '2 days' ELSE interval '0' END
FROM generate_series(1, 260) AS i;
INSERT INTO app.once_key
SELECT i::text, now(), now() + CASE WHEN i <= 250 THEN interval '-1 s' ELSE interval '1 day' END
FROM generate_series(1, 260) AS i;
INSERT INTO app.idempotency_key (scope, key, fingerprint, created_at, locked_until, finished_at, status)
SELECT 's', i::text, sha256(''), now() - interval '3 days', now(),
       now() - CASE WHEN i <= 250 THEN interval '2 days' ELSE interval '0' END, 200
FROM generate_series(1, 260) AS i;
INSERT INTO app.idempotency_key (scope, key, fingerprint, created_at, locked_until, recovery_point)
SELECT 's', 'unfinished ' || i, sha256(''), now() - interval '3 days', now(), 'charged' FROM generate_series(1, 2) AS i";

const LEFT: &str = "
SELECT (SELECT count(*) FROM app.processed_message) + (SELECT count(*) FROM app.once_key)
       + (SELECT count(*) FROM app.idempotency_key)";

#[tokio::test]
async fn reap_deletes_old_rows_of_installed_modules() {
    let setup = Setup::migrated("module_reap_by_hand").await;
    setup.relay(&["migrate", "--with", "inbox,idempotency"]).succeeds();
    setup.relay(&["migrate", "--with", "once"]).succeeds();
    run(&setup.client, &FILL.replace("2 days", "40 days").replace("3 days", "41 days")).await;
    // Without the privileges, nothing is deleted, and each missing privilege is reported.
    let grant = r#"GRANT SELECT (processed_at) ON "app"."processed_message""#;
    setup.relay(&["reap"]).fails(78, &[grant, r#"GRANT EXECUTE ON FUNCTION "app"."once_reap""#]);
    let roles = setup.relay(&["migrate", "--print-roles", "--role", setup.roles().relay()]);
    run(&setup.client, roles.succeeds()).await;

    let lines = |verb: &str| {
        format!(
            "app.outbox: 0 rows {verb}, sent more than 1h ago\n\
             app.processed_message: 250 rows {verb}, processed more than 30 days ago\n\
             app.idempotency_key: 250 rows {verb}, finished more than 1 day ago\n\
             app.idempotency_key: kept 2 unfinished requests that began more than 1 day ago. Complete them in the \
             application.\n\
             app.once_key: 250 rows {verb}, expired\n"
        )
    };
    assert_eq!(setup.relay(&["reap", "--dry-run"]).succeeds(), lines("would be deleted"));
    assert_eq!(setup.number(LEFT).await, 782);
    assert_eq!(setup.relay(&["reap"]).succeeds(), lines("deleted"));
    assert_eq!(setup.number(LEFT).await, 32);
    setup.drop(&[]).await;
}

#[tokio::test]
async fn running_relay_reaps_the_modules_and_reports_unfinished() {
    let mut outbox = Outbox::without_topics("module_reap").await;
    for module in Module::ALL {
        apply(&mut outbox.client, &table("app.outbox"), module).await;
    }
    run(&outbox.client, FILL).await;
    let endless = "UPDATE app.idempotency_key SET created_at = '-infinity' WHERE key = 'unfinished 1'";
    run(&outbox.client, endless).await;
    let (role, _) = outbox.database.connect_as_new_role().await;
    run(&outbox.client, &relay_grants(&table("app.outbox"), &role)).await;
    let url = outbox.database.url().replace("postgres@", &format!("{role}@"));
    let relay = outbox.relay().set("postgres", "url", url).set("reaper", "interval", "1s");
    let relay = relay.set("reaper", "batch_size", 100).set("reaper", "inbox_retention", "1d");
    let mut relay = relay.set("admin", "listen", "127.0.0.1:0").start().await;

    // Without the privileges, the outbox is reaped nevertheless, and the missing privilege is logged once.
    relay.wait_for_log("reaper of the modules failing").await;
    relay.wait_for_log("permission denied for function inbox_reap").await;
    let metrics = relay.get("/metrics").await.unwrap().1;
    assert!(!metrics.contains("\noutbox_relay_reaper_faults_total 0\n"), "{metrics}");
    assert_eq!(outbox.count(LEFT).await, 782);
    let grant =
        "GRANT EXECUTE ON FUNCTION app.once_reap, app.idempotency_reap, app.idempotency_unfinished TO";
    run(&outbox.client, &format!("{grant} {role}")).await;
    wait_until("the two modules are reaped", STALLED, async || outbox.count(LEFT).await == 282).await;
    run(&outbox.client, &format!("GRANT EXECUTE ON FUNCTION app.inbox_reap TO {role}")).await;
    wait_until("all modules are reaped", STALLED, async || outbox.count(LEFT).await == 32).await;
    relay.wait_for_log("reaper of the modules working again").await;
    relay.wait_for_log("unfinished idempotency requests are older").await;
    assert_eq!(relay.log().matches("reaper of the modules failing").count(), 1, "{}", relay.log());

    let unfinished = async |relay: &RelayProcess, number: i64| {
        let line = format!("\noutbox_relay_idempotency_unfinished_requests {number}\n");
        let metrics = relay.get("/metrics").await.unwrap().1;
        assert!(metrics.contains(&line), "{metrics}");
    };
    unfinished(&relay, 2).await;
    run(&outbox.client, "DELETE FROM app.idempotency_key WHERE finished_at IS NULL").await;
    relay.wait_for_log("no unfinished idempotency requests are past retention").await;
    unfinished(&relay, 0).await;
    assert_eq!(
        relay.log().matches("unfinished idempotency requests are older").count(),
        1,
        "{}",
        relay.log()
    );
    drop(relay);
    outbox.database.drop(&[&role]).await;
}
