//! `outbox-relay init`: from an empty database and an empty folder to a published event.

mod refusals;
mod terminal;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;
use tokio_postgres::Client;

use crate::support::command::{Ended, binary, relay_binary};
use crate::support::consumer;
use crate::support::database::{Database, run, unique};
use crate::support::postgres_server::PostgresServer;
use crate::support::topics::{self, Cluster};
use crate::support::wait::{STALLED, wait_until};

/// An empty database, an empty folder, and names that no other test uses.
struct World {
    database: Database,
    client: Client,
    folder: TempDir,
    role: String,
    topic: String,
}

impl World {
    /// On the shared server, where roles need no password.
    async fn new(test: &str) -> World {
        World::of(Database::create(test).await).await
    }

    /// On a server that checks the password of every role except its superuser. In clear text, because SCRAM takes most
    /// of a second in a build without optimization.
    async fn with_passwords(server: &PostgresServer, test: &str) -> World {
        let hba = server.data().join("pg_hba.conf");
        fs::write(&hba, "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
            .unwrap();
        server.reload();
        let world = World::of(Database::create_on(&server.url(), test).await).await;
        run(&world.client, "CREATE ROLE without_password LOGIN").await;
        let url = world.database.url_of("without_password");
        wait_until("the server asks for a password", STALLED, async || {
            tokio_postgres::connect(&url, tokio_postgres::NoTls).await.is_err()
        })
        .await;
        world
    }

    async fn of(database: Database) -> World {
        let client = database.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let role = unique("init");
        World { database, client, folder, topic: format!("events.{role}"), role }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("etc/relay").join(name)
    }

    fn file(&self) -> PathBuf {
        self.path("config.toml")
    }

    fn password(&self) -> String {
        fs::read_to_string(self.path("postgres-password")).unwrap().trim_end().to_owned()
    }

    /// Every argument but `--yes` and `--topic`.
    fn command(&self, more: &[&str]) -> Command {
        self.command_with(&self.database.url(), &topics::bootstrap(), more)
    }

    fn command_with(&self, url: &str, brokers: &str, more: &[&str]) -> Command {
        let mut command = binary(&["init", "--config", self.file().to_str().unwrap(), "--role", &self.role]);
        command.args(["--database", url, "--brokers", brokers]).args(more);
        command.env("OUTBOX_RELAY__ADMIN__LISTEN", "off").env_remove("PGPASSWORD").stdin(Stdio::null());
        command
    }

    fn init(&self, more: &[&str]) -> Ended {
        Ended::of(self.command(&["--yes"]).args(more))
    }

    async fn number(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    async fn roles(&self) -> i64 {
        let sql = format!("SELECT count(*) FROM pg_roles WHERE starts_with(rolname, '{}')", self.role);
        self.number(&sql).await
    }

    /// Neither tables, roles, topics nor files.
    async fn assert_nothing_exists(&self) {
        assert_eq!(
            self.number("SELECT count(*) FROM pg_class WHERE relname LIKE 'outbox%'").await,
            0,
            "tables"
        );
        assert_eq!(self.roles().await, 0, "roles");
        assert_eq!(Cluster::shared().partitions(&self.topic), 0, "topic");
        let files: Vec<_> = fs::read_dir(self.folder.path()).unwrap().collect();
        assert!(files.is_empty(), "{files:?}");
    }

    /// For the end of a passed test.
    async fn drop(self) {
        if Cluster::shared().partitions(&self.topic) > 0 {
            topics::delete(&self.topic).await;
        }
        let role = &self.role;
        let made = ["", "_operator", "_monitor", "_writer"].map(|suffix| format!("{role}{suffix}"));
        let made: Vec<&str> =
            if self.roles().await > 0 { made.iter().map(String::as_str).collect() } else { vec![] };
        drop(self.client);
        self.database.drop(&made).await;
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// A process that the test kills at its end.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Runs a printed command, with this binary.
fn shell(line: &str) -> Command {
    let line = line.trim().replacen("outbox-relay", relay_binary().to_str().unwrap(), 1);
    let mut command = Command::new("bash");
    command.args(["-c", &format!("exec {line}")]).env("OUTBOX_RELAY__ADMIN__LISTEN", "off");
    command
}

#[tokio::test]
async fn init_and_the_two_commands_that_it_prints_publish_an_event() {
    let server = PostgresServer::start(&[("log_statement", "'all'")]).await;
    let world = World::with_passwords(&server, "first_hour").await;
    let ended = world.init(&["--topic", &world.topic]);
    let printed = ended.succeeds();
    let password = world.password();
    assert_eq!((mode(&world.file()), mode(&world.path("postgres-password"))), (0o644, 0o600));
    assert_eq!(mode(&world.path("")), 0o755);
    assert!(!fs::read_to_string(world.file()).unwrap().contains(&password));
    assert!(password.len() >= 32 && !ended.to_string().contains(&password), "{ended}");
    assert!(!server.whole_log().contains(&password), "the server logged the password");
    // With --yes, the plan and the result are enough.
    assert!(printed.starts_with("Plan:\n") && !printed.contains("CREATE TABLE"), "{ended}");
    assert!(printed.lines().count() < 40, "{ended}");
    let topic = format!("warning        topic {}: its replication factor is 1", world.topic);
    assert!(printed.contains(&topic), "the new topics are checked: {ended}");
    let grant = format!("GRANT \"{}_operator\" TO \"alice\"", world.role);
    assert!(printed.contains(&grant), "{ended}");

    let commands: Vec<&str> = printed.lines().rev().take(2).collect();
    assert!(commands[1].starts_with("  outbox-relay run") && commands[0].starts_with("  psql "), "{ended}");
    let _relay = Running(shell(commands[1]).stderr(Stdio::null()).spawn().unwrap());
    let inserted = shell(commands[0]).output().unwrap();
    assert!(inserted.status.success(), "{inserted:?}");
    let mut records = Vec::new();
    wait_until("the event arrives", STALLED, async || {
        records = consumer::read_all_of(&Cluster::shared(), std::slice::from_ref(&world.topic)).await;
        !records.is_empty()
    })
    .await;
    assert_eq!(records[0].key.as_deref(), Some(&b"42"[..]));
    topics::delete(&world.topic).await;
}

#[tokio::test]
async fn second_run_keeps_what_exists() {
    let world = World::new("init_twice").await;
    world.init(&["--topic", &world.topic]).succeeds();
    let files = || [world.file(), world.path("postgres-password")].map(|file| fs::read(file).unwrap());
    let password = format!("SELECT rolpassword FROM pg_authid WHERE rolname = '{}'", world.role);
    let before: (_, String) = (files(), world.client.query_one(&password, &[]).await.unwrap().get(0));
    // A privilege that an operator has added stays.
    run(&world.client, &format!("GRANT SELECT ON outbox_act TO {}", world.role)).await;
    // The variables of the owner, such as for `migrate`, are not those of the relay.
    let nowhere = "postgres://nobody@localhost:1/none";
    let again = Ended::of(
        world.command(&["--yes", "--topic", &world.topic]).env("OUTBOX_RELAY__POSTGRES__URL", nowhere),
    );
    let plan = again.succeeds().split_once("Plan:\n").unwrap().1.split_once("\nconfiguration").unwrap().0;
    assert!(plan.lines().all(|line| line.starts_with("  keep ")), "{again}");
    assert_eq!(plan.lines().count(), 8, "{again}");
    let after = (files(), world.client.query_one(&password, &[]).await.unwrap().get(0));
    assert_eq!(after, before);
    let granted = format!(
        "SELECT count(*) FROM pg_tables WHERE tablename = 'outbox_act' AND \
                           has_table_privilege('{}', 'outbox_act', 'SELECT')",
        world.role
    );
    assert_eq!(world.number(&granted).await, 1);
    world.drop().await;
}

/// Each state that an interruption can leave behind.
#[tokio::test]
async fn interrupted_run_is_completed() {
    let server = PostgresServer::start(&[]).await;
    let world = World::with_passwords(&server, "init_interrupted").await;
    // After the password was written.
    fs::create_dir_all(world.path("")).unwrap();
    fs::write(world.path("postgres-password"), "chosen\n").unwrap();
    world.init(&[]).succeeds();
    assert_eq!(world.password(), "chosen");
    // Before the configuration was written, and before the privileges were granted.
    run(&world.client, &format!("REVOKE ALL ON outbox FROM {}", world.role)).await;
    fs::remove_file(world.file()).unwrap();
    let ended = world.init(&[]);
    assert!(
        ended.succeeds().contains(&format!("keep     role {}, and set its privileges", world.role)),
        "{ended}"
    );
    // Before the roles were created.
    for role in ["", "_operator", "_monitor", "_writer"].map(|suffix| format!("{}{suffix}", world.role)) {
        run(&world.client, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    }
    fs::remove_file(world.file()).unwrap();
    world.init(&[]).succeeds();
    // The relay logs in with the password that was kept.
    Ended::of(&mut binary(&["status", "--config", world.file().to_str().unwrap()])).succeeds();
}

#[tokio::test]
async fn dry_run_prints_the_plan_and_changes_nothing() {
    let world = World::new("init_dry").await;
    let ended = Ended::of(world.command(&["--dry-run", "--topic"]).arg(&world.topic));
    let role = &world.role;
    for part in [
        "CREATE TABLE \"public\".\"outbox\"",
        &format!("CREATE ROLE \"{role}\" LOGIN PASSWORD 'SCRAM-SHA-256 verifier, not shown';"),
        "password_file = \"postgres-password\"",
        "\nPlan:\n  create   tables of public.outbox, with ",
        &format!("  create   role {role}, with a generated password\n"),
        &format!("  create   topic {}, with 3 partitions\n", world.topic),
        &format!("  create   file {}, mode 600\n", world.path("postgres-password").display()),
        &format!("  create   file {}, mode 644\n", world.file().display()),
    ] {
        assert!(ended.succeeds().contains(part), "{part:?} is missing in {ended}");
    }
    world.assert_nothing_exists().await;
    world.drop().await;
}

/// The package installs a configuration that names no server.
#[tokio::test]
async fn unchanged_configuration_of_the_package_is_replaced() {
    let world = World::new("init_packaged").await;
    fs::create_dir_all(world.path("")).unwrap();
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/config.toml"), world.file()).unwrap();
    let ended = world.init(&[]);
    assert!(ended.succeeds().contains("  replace  file "), "{ended}");
    assert!(fs::read_to_string(world.file()).unwrap().contains("written by `outbox-relay init`"));
    world.drop().await;
}

#[tokio::test]
async fn options_end_up_in_the_configuration_and_the_database() {
    let world = World::new("init_options").await;
    let ended = world.init(&[
        "--table",
        "app.events",
        "--kafka-property",
        "client.id=shop",
        "--topic",
        &world.topic,
        "--partitions",
        "2",
        "--replication-factor",
        "1",
    ]);
    ended.succeeds();
    let text = fs::read_to_string(world.file()).unwrap();
    assert!(text.contains("table = \"app.events\"") && text.contains("\"client.id\" = \"shop\""), "{text}");
    assert_eq!(world.number("SELECT count(*) FROM app.events_lane").await, 64);
    assert_eq!(Cluster::shared().partitions(&world.topic), 2);
    world.drop().await;
}

#[tokio::test]
async fn topic_template_follows_the_topics() {
    let world = World::new("init_template").await;
    let (order, invoice) = (format!("{}.eu.order", world.role), format!("{}.eu.invoice", world.role));
    let other = format!("{}.us.order", world.role);
    let refused = "No event would reach the topic";
    world
        .init(&["--topic", &format!("{order},{other}")])
        .fails(78, &[refused, &other, "Nothing was changed."]);
    world.assert_nothing_exists().await;
    let ended = world.init(&["--topic", &format!("{order},{invoice}")]);
    assert!(ended.succeeds().contains("VALUES ('order', "), "{ended}");
    let text = fs::read_to_string(world.file()).unwrap();
    assert!(text.contains(&format!("topic = \"{}.eu.{{aggregate_type}}\"", world.role)), "{text}");
    // An existing configuration decides.
    world.init(&["--topic", &world.topic]).fails(78, &[refused, &world.topic]);
    assert_eq!(Cluster::shared().partitions(&world.topic), 0);
    fs::write(world.file(), text.replace("{aggregate_type}", "{aggregate_type}.{event_type}")).unwrap();
    world.init(&["--topic", &order]).fails(78, &[refused, &order]);
    for topic in [&order, &invoice] {
        topics::delete(topic).await;
    }
    world.drop().await;
}
