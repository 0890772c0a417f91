//! What `init` refuses: one message, and nothing half done.

use std::fs;

use super::World;
use crate::operating::commands::nowhere;
use crate::support::command::{Ended, binary};
use crate::support::database::{Database, run};
use crate::support::postgres_server::PostgresServer;
use crate::support::topics;

#[tokio::test]
async fn unusable_arguments_are_refused() {
    let world = World::new("init_arguments").await;
    let (url, brokers) = (world.database.url(), topics::bootstrap());
    let file = world.file();
    let file = file.to_str().unwrap();
    for (args, code, said) in [
        (
            &["--yes", "--brokers", "localhost:9092"][..],
            2,
            "--database is missing, for example --database postgres://",
        ),
        (&["--yes", "--database", &url], 2, "--brokers is missing, for example --brokers localhost:9092"),
        (&["--database", &url, "--brokers", &brokers], 2, "stdin is not a terminal"),
        (&["--yes", "--topic", "a b"], 2, "character ' ' at position 2"),
        (&["--yes", "--partitions", "0"], 2, "0 is not in 1..=10000"),
        (&["--yes", "--kafka-property", "sasl.password=hunter2"], 2, "pass sasl.password_file=NAME"),
        (&["--yes", "--role", "pg_relay"], 2, "reserved by PostgreSQL"),
        (
            &["--yes", "--database", "mysql://h/app", "--brokers", "k:1"],
            78,
            "does not start with postgres://",
        ),
        (
            &["--yes", "--database", "postgres://u:hunter2@h/app", "--brokers", "k:1"],
            78,
            "variable PGPASSWORD",
        ),
        (&["--yes", "--database", "postgres://u@h", "--brokers", "k:1"], 78, "names no database"),
        (
            &["--yes", "--database", "postgres://outbox_relay@h/app", "--brokers", "k:1"],
            78,
            "the relay's own role",
        ),
        (&["--yes", "--database", "postgres://u@/app", "--brokers", "k:1"], 78, "[postgres] url has no host"),
        (
            &["--yes", "--database", "postgres://u@h/app?sslmod=x", "--brokers", "k:1"],
            78,
            "did you mean sslmode?",
        ),
        (&["--yes", "--database", &url, "--brokers", " "], 78, "bootstrap_servers"),
        (&["--yes", "--database", &url, "--brokers", &brokers, "--kafka-property", "acks=1"], 78, "acks"),
    ] {
        let ended = Ended::of(binary(&["init", "--config", file]).args(args).env_remove("PGPASSWORD"));
        ended.fails(code, &[said]);
        assert!(!(ended.stdout.clone() + &ended.stderr).contains("hunter2"), "{ended}");
    }
    Ended::of(binary(&["init", "--yes"]).env("OUTBOX_RELAY_CONFIG", ""))
        .fails(2, &["OUTBOX_RELAY_CONFIG is empty"]);
    world.assert_nothing_exists().await;
    world.drop().await;
}

#[tokio::test]
async fn unusable_servers_are_refused() {
    let world = World::new("init_servers").await;
    let (url, brokers) = (world.database.url(), topics::bootstrap());
    let of = |url: &str, brokers: &str| {
        Ended::of(
            world.command_with(url, brokers, &["--yes", "--topic", &world.topic]).env_remove("PGPASSWORD"),
        )
    };
    let away = format!("postgres://postgres@{}/app", nowhere());
    of(&away, &brokers).fails(69, &["connecting to PostgreSQL", "Nothing was changed."]);
    of(&url, &nowhere()).fails(69, &["no broker reachable"]);
    let missing = url.replace(world.database.name(), "no_such_database");
    of(&missing, &brokers).fails(69, &["does not exist", "createdb", "--database", "Nothing was changed."]);
    let replicas = world.init(&["--topic", &world.topic, "--replication-factor", "99"]);
    replicas.fails(78, &["Kafka refused a topic", "--replication-factor"]);

    // Neither an owner nor a role that may create roles.
    let (role, client) = world.database.connect_as_new_role().await;
    drop(client);
    let mut guest = world.command_with(&world.database.url_of(&role), &brokers, &["--yes"]);
    Ended::of(guest.env("PGPASSWORD", "test"))
        .fails(78, &["permission denied", "As the owner or a superuser, run: ", &role]);
    let (database, schema) = (world.database.name(), "public");
    run(
        &world.client,
        &format!("GRANT CREATE ON DATABASE {database} TO {role}; GRANT CREATE ON SCHEMA {schema} TO {role}"),
    )
    .await;
    let mut owner = world.command_with(&world.database.url_of(&role), &brokers, &["--yes"]);
    let ended = Ended::of(owner.env("PGPASSWORD", "test"));
    ended.fails(78, &[&format!("ALTER ROLE \"{role}\" CREATEROLE;")]);
    world.assert_nothing_exists().await;
    // With both privileges, no superuser is needed.
    run(&world.client, &format!("ALTER ROLE {role} CREATEROLE")).await;
    let mut owner = world.command_with(&world.database.url_of(&role), &brokers, &["--yes"]);
    Ended::of(owner.env("PGPASSWORD", "test")).succeeds();
    let made = ["", "_operator", "_monitor", "_writer"].map(|suffix| format!("{}{suffix}", world.role));
    let made: Vec<&str> = made.iter().map(String::as_str).chain([role.as_str()]).collect();
    let World { database, client, .. } = world;
    drop(client);
    database.drop(&made).await;
}

#[tokio::test]
async fn standby_and_other_encodings_are_refused() {
    let server = PostgresServer::start(&[]).await;
    let standby = server.standby().await;
    let world = World::new("init_standby").await;
    let ended = Ended::of(&mut world.command_with(&standby.url(), &topics::bootstrap(), &["--yes"]));
    ended.fails(78, &["the server is a standby", "connect to the primary"]);
    let latin = Database::create_in("init_latin", "LATIN1").await;
    let ended = Ended::of(&mut world.command_with(&latin.url(), &topics::bootstrap(), &["--yes"]));
    ended.fails(78, &["its encoding is LATIN1"]);
    latin.drop(&[]).await;
    world.assert_nothing_exists().await;
    world.drop().await;
}

#[tokio::test]
async fn files_of_another_outbox_are_not_overwritten() {
    let world = World::new("init_files").await;
    let root = world.folder.path();
    // A file where the folder should be.
    fs::write(root.join("etc"), "").unwrap();
    world.init(&[]).fails(78, &["Cannot write to", "/etc: not a directory", "with --config"]);
    fs::remove_file(root.join("etc")).unwrap();
    fs::create_dir_all(world.path("")).unwrap();
    let password = world.path("postgres-password");
    fs::write(&password, "\n").unwrap();
    world.init(&[]).fails(78, &["postgres-password is empty"]);
    fs::remove_file(&password).unwrap();
    let other = "[postgres]\nurl = 'postgres://x@localhost/y'\n[kafka]\nbootstrap_servers = 'k:1'\n";
    for (text, said) in [
        (other, "exists, but has different settings (database or role, brokers)"),
        ("url = 1", "exists, but is invalid. `init` does not overwrite it"),
    ] {
        fs::write(world.file(), text).unwrap();
        world.init(&[]).fails(78, &[said, "--config"]);
        assert_eq!(fs::read_to_string(world.file()).unwrap(), text);
    }
    assert!(!password.exists());
    fs::remove_file(world.file()).unwrap();
    run(&world.client, &format!("CREATE ROLE {} LOGIN", world.role)).await;
    world.init(&[]).fails(78, &["does not change the password of an existing role", "--role NAME"]);
    run(&world.client, &format!("DROP ROLE {}", world.role)).await;
    fs::remove_dir_all(root.join("etc")).unwrap();
    world.assert_nothing_exists().await;
    world.drop().await;
}

#[tokio::test]
async fn table_that_is_not_an_outbox_is_kept_and_refused() {
    let world = World::new("init_table").await;
    run(&world.client, "CREATE TABLE outbox (mine text); INSERT INTO outbox VALUES ('x')").await;
    world.init(&[]).fails(78, &["\"outbox\" already exists", "no migration is recorded"]);
    assert_eq!(world.number("SELECT count(*) FROM outbox WHERE mine = 'x'").await, 1);
    assert_eq!(world.roles().await, 0);
    assert!(!world.path("").exists());
    world.drop().await;
}
