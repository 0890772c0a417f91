//! Migrations on a real server.

use std::process::{Command, Stdio};

use postgres::access::roles::{self, RelayRole};
use postgres::schema::errors::MigrateError;
use postgres::schema::migrate;
use postgres::schema::migrate::{MIGRATIONS, Series, State, Version};
use postgres::table::Module;
use postgres::table::{TableName, quote_identifier};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::support::database::{Database, run, unique};
use crate::support::wait::{STALLED, wait_until};

fn table(name: &str) -> TableName {
    name.parse().unwrap()
}

async fn states(client: &mut Client, table: &TableName) -> Vec<State> {
    migrate::status(client, table, Series::Outbox)
        .await
        .unwrap()
        .into_iter()
        .map(|known| known.state)
        .collect()
}

#[tokio::test]
async fn all_migrations_are_applied_once_to_a_new_database() {
    let database = Database::create("fresh").await;
    let mut client = database.connect().await;
    let outbox = table("app.outbox");
    assert_eq!(states(&mut client, &outbox).await, MIGRATIONS.map(|_| State::Pending));

    let numbers: Vec<_> =
        migrate::apply(&mut client, &outbox).await.unwrap().iter().map(|applied| applied.number).collect();
    assert_eq!(numbers, MIGRATIONS.map(|migration| migration.number));
    let state = states(&mut client, &outbox).await;
    let is_applied = |state: &State| matches!(state, State::Applied { .. });
    assert!(state.len() == MIGRATIONS.len() && state.iter().all(is_applied), "{state:?}");
    assert_eq!(migrate::apply(&mut client, &outbox).await.unwrap(), [], "a second run");
    database.drop(&[]).await;
}

#[tokio::test]
async fn dry_run_tries_everything_and_changes_nothing() {
    let database = Database::create("dry").await;
    let mut client = database.connect().await;
    let outbox = table("app.outbox");
    assert_eq!(migrate::dry_run(&mut client, &outbox, Series::Outbox).await.unwrap().len(), MIGRATIONS.len());
    assert_eq!(states(&mut client, &outbox).await, MIGRATIONS.map(|_| State::Pending));

    run(&client, "CREATE SCHEMA app; CREATE TABLE app.outbox_lane ()").await;
    let error = migrate::dry_run(&mut client, &outbox, Series::Outbox).await.unwrap_err();
    assert!(matches!(error, MigrateError::Exists { .. }), "{error}");
    assert!(error.to_string().contains("Choose another name in [outbox] table"), "{error}");
    database.drop(&[]).await;
}

/// With another name in `[outbox] table`, the relay would publish from an empty outbox.
#[tokio::test]
async fn conflict_of_a_later_migration_is_not_resolved_with_another_outbox() {
    let database = Database::create("conflict").await;
    let mut client = database.connect().await;
    let outbox = table("app.outbox");
    migrate::apply(&mut client, &outbox).await.unwrap();
    let later = "DROP FUNCTION app.outbox_template; DROP TABLE app.outbox_setting;
                 DELETE FROM app.outbox_migration WHERE number = 2; CREATE TABLE app.outbox_setting ()";
    run(&client, later).await;
    for error in [
        migrate::apply(&mut client, &outbox).await,
        migrate::dry_run(&mut client, &outbox, Series::Outbox).await,
    ] {
        let error = error.unwrap_err();
        assert!(matches!(error, MigrateError::Exists { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("\"outbox_setting\" already exists"), "{text}");
        assert!(text.contains("Rename or drop the existing") && !text.contains("[outbox] table"), "{text}");
    }
    run(&client, "DROP TABLE app.outbox_setting").await;
    assert_eq!(migrate::apply(&mut client, &outbox).await.unwrap().len(), 1);
    database.drop(&[]).await;
}

#[tokio::test]
async fn two_operators_at_once_apply_each_migration_once() {
    let database = Database::create("concurrent").await;
    let outbox = table("app.outbox");
    for round in 0..5 {
        let outbox = TableName::new(format!("app{round}"), outbox.table()).unwrap();
        let (mut one, mut two) = (database.connect().await, database.connect().await);
        let (first, second) =
            tokio::join!(migrate::apply(&mut one, &outbox), migrate::apply(&mut two, &outbox));
        assert_eq!(first.unwrap().len() + second.unwrap().len(), MIGRATIONS.len(), "round {round}");
    }
    database.drop(&[]).await;
}

#[tokio::test]
async fn migrate_reports_a_held_lock_instead_of_waiting() {
    let database = Database::create("locked").await;
    let (mut client, other) = (database.connect().await, database.connect().await);
    migrate::apply(&mut client, &table("app.outbox")).await.unwrap();
    run(&client, "DELETE FROM app.outbox_migration WHERE number > 3").await;
    run(&other, "BEGIN; LOCK TABLE app.outbox_migration IN SHARE ROW EXCLUSIVE MODE").await;
    let error = migrate::apply(&mut client, &table("app.outbox")).await.unwrap_err();
    assert!(matches!(error, MigrateError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("pg_blocking_pids()"), "{error}");
    run(&other, "ROLLBACK").await;
    database.drop(&[]).await;
}

/// Every role can take an advisory lock, and every role with a privilege on a table a weak lock on it.
#[tokio::test]
async fn locks_of_strangers_do_not_stop_a_migration() {
    let database = Database::create("stranger").await;
    let mut client = database.connect().await;
    let (role, stranger) = database.connect_as_new_role().await;
    let outbox = table("app.outbox");
    migrate::apply(&mut client, &outbox).await.unwrap();
    run(
        &client,
        &format!("GRANT USAGE ON SCHEMA app TO {role}; GRANT SELECT ON app.outbox_migration TO {role}"),
    )
    .await;
    run(
        &stranger,
        "SELECT pg_advisory_lock(hashtextextended('outbox-relay migrate ' || t, 0))
         FROM unnest(ARRAY['\"app\".\"outbox\"', '\"app\".\"pg_outbox_migration\"']) AS t;
         BEGIN; SELECT * FROM app.outbox_migration; LOCK TABLE app.outbox_migration IN ACCESS SHARE MODE",
    )
    .await;
    for mode in ["ROW EXCLUSIVE", "SHARE ROW EXCLUSIVE"] {
        let lock = format!("SAVEPOINT s; LOCK TABLE app.outbox_migration IN {mode} MODE");
        let error = stranger.batch_execute(&lock).await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{mode}: {error:?}");
        run(&stranger, "ROLLBACK TO s").await;
    }
    let mut once = Vec::new();
    migrate::apply_series(&mut client, &outbox, Series::Module(Module::Once), &mut once).await.unwrap();
    assert_eq!(once.len(), 2);
    drop(stranger);
    database.drop(&[&role]).await;
}

/// While a DDL statement waits for its lock, all later statements on the table wait behind it.
#[tokio::test]
async fn migrate_gives_up_waiting_for_a_lock_and_retries() {
    give_up_waiting_for_a_lock_and_retry("lock_retried", false).await;
}

#[tokio::test]
async fn dry_run_gives_up_waiting_for_a_lock_and_retries() {
    give_up_waiting_for_a_lock_and_retry("dry_lock_retried", true).await;
}

async fn give_up_waiting_for_a_lock_and_retry(test: &str, is_dry_run: bool) {
    let database = Database::create(test).await;
    let (mut client, other) = (database.connect().await, database.connect().await);
    let outbox = table("app.outbox");
    let once = Series::Module(Module::Once);
    migrate::apply_series(&mut client, &outbox, once, &mut Vec::new()).await.unwrap();
    run(
        &client,
        "DROP FUNCTION app.once_owner; DROP TABLE app.once_service; ALTER TABLE app.once_key DROP COLUMN owner;
         ALTER TABLE app.once_key ADD PRIMARY KEY (key);
         DELETE FROM app.pg_outbox_migration WHERE number = 2",
    )
    .await;
    run(&other, "BEGIN; LOCK TABLE app.once_key IN SHARE MODE").await;
    // It would end the session while the migration waits.
    let timeout =
        "SELECT set_config(name, '700ms', false) FROM pg_settings WHERE name = 'transaction_timeout'";
    run(&client, timeout).await;
    let migrating = async {
        if is_dry_run {
            return migrate::dry_run(&mut client, &outbox, once).await.map(|tried| tried.len());
        }
        let mut applied = Vec::new();
        migrate::apply_series(&mut client, &outbox, once, &mut applied).await.map(|()| applied.len())
    };
    let waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'app.once_key'::regclass AND NOT granted";
    let locking = async {
        for expected in [1, 0] {
            wait_until("the migration waits and then gives up", STALLED, async || {
                other.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == expected
            })
            .await;
        }
        run(&other, "COMMIT").await;
    };
    let (migrated, ()) = tokio::join!(migrating, locking);
    assert_eq!(migrated, Ok(1));
    drop(client);
    database.drop(&[]).await;
}

#[tokio::test]
async fn changed_or_newer_migration_is_refused() {
    let database = Database::create("refused").await;
    let mut client = database.connect().await;
    let outbox = table("app.outbox");
    migrate::apply(&mut client, &outbox).await.unwrap();

    run(&client, "INSERT INTO app.outbox_migration VALUES (8, 'later', 'x', now(), '99.0.0')").await;
    let state = states(&mut client, &outbox).await;
    let (unknown, known) = state.split_last().unwrap();
    assert!(known.iter().all(|state| matches!(state, State::Applied { .. })), "{state:?}");
    let min_relay = Version::parse("99.0.0");
    assert_eq!((known.len(), unknown), (MIGRATIONS.len(), &State::Unknown { min_relay }));
    let error = migrate::apply(&mut client, &outbox).await.unwrap_err();
    assert!(matches!(error, MigrateError::Newer { number: 8, .. }), "{error}");
    assert!(migrate::dry_run(&mut client, &outbox, Series::Outbox).await.is_err());

    run(&client, "DELETE FROM app.outbox_migration WHERE number = 8").await;
    run(&client, "UPDATE app.outbox_migration SET checksum = 'x'").await;
    let state = states(&mut client, &outbox).await;
    assert_eq!(state, MIGRATIONS.map(|_| State::ChecksumDiffers { recorded: "x".to_owned() }));
    let error = migrate::apply(&mut client, &outbox).await.unwrap_err();
    assert!(matches!(error, MigrateError::ChecksumDiffers { number: 1, .. }), "{error}");
    database.drop(&[]).await;
}

#[tokio::test]
async fn missing_privilege_is_reported_with_its_grant() {
    let database = Database::create("denied").await;
    let admin = database.connect().await;
    let (role, mut client) = database.connect_as_new_role().await;
    let outbox = table("app.outbox");
    let refused = async |client: &mut Client| match migrate::apply(client, &outbox).await {
        Err(MigrateError::Denied { grant, .. }) => grant,
        other => panic!("{other:?}"),
    };

    let grant = refused(&mut client).await;
    assert!(grant.starts_with("GRANT CREATE ON DATABASE "), "{grant}");
    run(&admin, "CREATE SCHEMA app").await;
    let grant = refused(&mut client).await;
    assert_eq!(grant, format!("GRANT USAGE, CREATE ON SCHEMA \"app\" TO \"{role}\";"));
    run(&admin, &grant).await;
    assert_eq!(migrate::apply(&mut client, &outbox).await.unwrap().len(), MIGRATIONS.len());

    let (reader, mut client) = database.connect_as_new_role().await;
    match migrate::status(&mut client, &outbox, Series::Outbox).await {
        Err(MigrateError::Denied { grant, .. }) => run(&admin, &grant).await,
        other => panic!("{other:?}"),
    }
    assert_eq!(
        migrate::apply(&mut client, &outbox).await.unwrap(),
        [],
        "an up-to-date schema needs no further privileges"
    );
    database.drop(&[&reader, &role]).await;
}

#[tokio::test]
async fn role_with_read_only_default_can_migrate() {
    let database = Database::create("readonly").await;
    let mut client = database.connect().await;
    run(&client, "SET default_transaction_read_only = on").await;
    run(&client, "SET default_transaction_isolation = 'serializable'").await;
    migrate::apply(&mut client, &table("app.outbox")).await.unwrap();
    database.drop(&[]).await;
}

#[tokio::test]
async fn odd_names_work() {
    let database = Database::create("odd").await;
    let mut client = database.connect().await;
    let mut created = Vec::new();
    for name in [
        r#""My ""Schema""".outbox"#,
        r#""it's"."out\'box""#,
        r#""{lane}"."$1; --""#,
        r#""a$grants$b"."x$do$y""#,
        "select.order",
    ] {
        let outbox = table(name);
        migrate::apply(&mut client, &outbox).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let sql = outbox
            .render("SELECT {enqueue}('order', '42', 'Placed'); INSERT INTO {hold} (topic, reason, error) VALUES ('t', 'r', 'e')");
        run(&client, &sql).await;
        let states = states(&mut client, &outbox).await;
        assert!(states.iter().all(|state| matches!(state, State::Applied { .. })), "{name}: {states:?}");
        let module = Series::Module(Module::Inbox);
        migrate::apply_series(&mut client, &outbox, module, &mut Vec::new()).await.unwrap();
        let role: RelayRole = unique("$grants$").parse().unwrap();
        run(&client, &roles::print(&outbox, &role, false)).await;
        created.extend([role.relay().to_owned(), role.operator(), role.monitor(), role.writer()]);
    }
    let longest = TableName::new("s".repeat(63), "t".repeat(50)).unwrap();
    migrate::apply(&mut client, &longest).await.unwrap();
    run(&client, &longest.render("INSERT INTO {hold} (topic, reason, error) VALUES ('t', 'r', 'e')")).await;
    let created: Vec<String> = created.iter().map(|role| quote_identifier(role)).collect();
    database.drop(&created.iter().map(String::as_str).collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn printed_sql_creates_the_same_schema_as_migrate() {
    let database = Database::create("print").await;
    let mut client = database.connect().await;
    let [applied, executed, piped] = ["a", "b", "c"].map(|schema| TableName::new(schema, "outbox").unwrap());
    migrate::apply(&mut client, &applied).await.unwrap();
    run(&client, &migrate::print(&executed, Series::Outbox)).await;
    psql(&database, &migrate::print(&piped, Series::Outbox));

    let expected = catalogue(&client, "a").await;
    assert!(expected.len() > 50, "{expected:#?}");
    for (schema, outbox) in [("b", executed), ("c", piped)] {
        let found = catalogue(&client, schema).await;
        let missing: Vec<_> = expected.iter().filter(|fact| !found.contains(fact)).collect();
        let surplus: Vec<_> = found.iter().filter(|fact| !expected.contains(fact)).collect();
        assert!(
            missing.is_empty() && surplus.is_empty(),
            "{schema}: missing {missing:#?} surplus {surplus:#?}"
        );
        assert_eq!(migrate::apply(&mut client, &outbox).await.unwrap(), [], "schema {schema}");
    }
    database.drop(&[]).await;
}

/// Runs `sql` with psql in the way that the header of `--print` describes.
pub fn psql(database: &Database, sql: &str) {
    psql_with(&["--single-transaction"], database, sql);
}

/// Runs a script with psql and these options.
pub fn psql_with(options: &[&str], database: &Database, sql: &str) {
    use std::io::Write as _;
    let mut psql = Command::new("psql")
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", &database.url()])
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("psql is required: install the package postgresql-client");
    psql.stdin.take().unwrap().write_all(sql.as_bytes()).unwrap();
    assert!(psql.wait().unwrap().success());
}

/// The catalog entries of a schema, without the name of the schema.
pub async fn catalogue(client: &Client, schema: &str) -> Vec<String> {
    let sql = "
SELECT replace(replace(fact, $1 || '.', ''), '\"' || $1 || '\"' || '.', '') FROM (
    SELECT format('column %s.%s %s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
                  a.attnotnull, a.attidentity, pg_get_expr(d.adbin, d.adrelid)) AS fact
    FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
    LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relnamespace = to_regnamespace($1)
    UNION ALL
    SELECT 'index ' || pg_get_indexdef(i.indexrelid) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid
    WHERE c.relnamespace = to_regnamespace($1)
    UNION ALL
    SELECT 'constraint ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = to_regnamespace($1)
    UNION ALL
    SELECT 'function ' || pg_get_functiondef(oid) || ' ' || coalesce(proacl::text, '') FROM pg_proc
    WHERE pronamespace = to_regnamespace($1)
    UNION ALL
    SELECT 'trigger ' || pg_get_triggerdef(t.oid) FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
    WHERE c.relnamespace = to_regnamespace($1)
    UNION ALL
    SELECT format('sequence %s %s %s %s', c.relname, seqcache, seqincrement, seqcycle)
    FROM pg_sequence JOIN pg_class AS c ON c.oid = seqrelid WHERE c.relnamespace = to_regnamespace($1)
) AS facts ORDER BY 1";
    client.query(sql, &[&schema]).await.unwrap().iter().map(|row| row.get(0)).collect()
}
