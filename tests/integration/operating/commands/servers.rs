//! Unavailable servers: exit code 69 for commands that do not wait.

use super::{Setup, kafka, nowhere};

#[tokio::test]
async fn commands_that_do_not_wait_end_with_69_without_postgres() {
    let setup = Setup::empty("no_postgres").await;
    let address = nowhere();
    setup.configure(&format!("postgres://relay:hunter2@{address}/app"), &kafka());
    for args in [
        &["status"][..],
        &["status", "--json"],
        &["doctor"],
        &["reap"],
        &["reap", "--dry-run"],
        &["verify"],
        &["replay", "--all"],
        &["migrate"],
        &["migrate", "--status"],
        &["migrate", "--dry-run"],
        &["check-config", "--connect"],
        &["run", "--once"],
        &["dead-letters", "list"],
        &["dead-letters", "requeue", "--all"],
        &["dead-letters", "history"],
        &["blocked-keys", "dead-letter", "--all", "--dry-run"],
    ] {
        let ended = setup.relay(args);
        ended.fails(69, &["connecting to PostgreSQL"]);
        assert!(!ended.to_string().contains("hunter2"), "{ended}");
    }
    setup.drop(&[]).await;
}

#[tokio::test]
async fn missing_role_is_named() {
    let setup = Setup::empty("no_role").await;
    setup.configure(&setup.database.url().replace("postgres@", "nobody_at_all@"), &kafka());
    setup.relay(&["status"]).fails(69, &["nobody_at_all", "does not exist"]);
    setup.drop(&[]).await;
}

/// The relay requests READ WRITE in each transaction. With read-write, libpq too refuses such a server.
#[tokio::test]
async fn primary_is_used_although_transactions_are_read_only_by_default() {
    let setup = Setup::migrated("primary").await;
    let (name, url) = (setup.database.name(), setup.database.url());
    setup.sql(&format!("ALTER DATABASE \"{name}\" SET default_transaction_read_only = on")).await;
    let sign = if url.contains('?') { '&' } else { '?' };
    setup.configure(&format!("{url}{sign}target_session_attrs=primary"), &kafka());
    setup.relay(&["status"]).succeeds();
    setup.configure(&format!("{url}{sign}target_session_attrs=read-write"), &kafka());
    setup.relay(&["status"]).fails(69, &["does not allow writes"]);
    setup.sql(&format!("ALTER DATABASE \"{name}\" RESET default_transaction_read_only")).await;
    setup.drop(&[]).await;
}

#[tokio::test]
async fn commands_that_do_not_wait_end_with_69_without_kafka() {
    let setup = Setup::migrated("no_kafka").await;
    let address = nowhere();
    setup.configure(&setup.database.url(), &address);
    setup.relay(&["run", "--once"]).fails(69, &["Kafka cannot be reached"]);
    setup.relay(&["check-config", "--connect"]).fails(69, &["schema         app.outbox is valid", &address]);
    setup.relay(&["status"]).succeeds();
    setup.drop(&[]).await;
}

#[tokio::test]
async fn worst_finding_determines_the_exit_code() {
    let setup = Setup::empty("worst").await;
    setup.configure(&setup.database.url(), &nowhere());
    setup
        .relay(&["check-config", "--connect"])
        .fails(78, &["outbox-relay migrate --config", "kafka          "]);
    setup.drop(&[]).await;
}
