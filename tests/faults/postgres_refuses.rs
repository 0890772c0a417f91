//! PostgreSQL answers but refuses. Each time, the relay is not ready and reports the reason, backs off, and resumes by
//! itself.

use postgres::access::grants::relay_grants;
use std::time::{Duration, Instant};
use tokio_postgres::Client;

use crate::support::database::{run, unique};
use crate::support::outbox::Outbox;
use crate::support::postgres_server::{PostgresServer, Shutdown};
use crate::support::relay::{Relay, RelayProcess};
use crate::support::wait::{STALLED, assert_within, wait_until};
use crate::support::writers::{self, Writers};
use crate::world;

const TERMINATE: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = ";

/// An outbox, and a role for its relay that has only the documented privileges.
struct Setup {
    outbox: Outbox,
    role: String,
    keys: Vec<String>,
}

impl Setup {
    async fn create(test: &str) -> Self {
        Self::of(Outbox::create(test, 3).await).await
    }

    async fn of(outbox: Outbox) -> Self {
        let role = unique("relay");
        run(&outbox.client, &format!("CREATE ROLE {role} LOGIN PASSWORD 'first'")).await;
        run(&outbox.client, &relay_grants(&"app.outbox".parse().unwrap(), &role)).await;
        let keys = outbox.add_aggregates("order", 20).await;
        Self { outbox, role, keys }
    }

    fn url(&self, password: &str) -> String {
        self.outbox.database.url().replace("postgres@", &format!("{}:{password}@", self.role))
    }

    fn relay(&self) -> Relay {
        world::relay(&self.outbox).set("postgres", "url", self.url("first"))
    }

    /// Ends the connections of the role.
    async fn terminate(&self) {
        self.outbox.count(&format!("{TERMINATE} '{}'", self.role)).await;
    }

    /// Ends the connections of the role, which can open no more, and waits until the relay is not ready for this reason.
    /// Returns the number of outages so far: a connection that was just being opened can end the first one.
    async fn shut_out(&self, relay: &RelayProcess, says: &str) -> usize {
        let connected = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{}'", self.role);
        wait_until("the relay has no connection, and knows why", STALLED, async || {
            self.terminate().await;
            let is_shut_out = self.outbox.count(&connected).await == 0;
            is_shut_out && relay.not_ready().await.is_some_and(|why| why.contains(says))
        })
        .await;
        self.wait_until_not_ready(relay, says).await;
        relay.log().matches(world::FAILS).count()
    }

    /// Writes a few events, then waits until the relay reports that it is not ready for this reason and that rows wait.
    async fn wait_until_not_ready(&self, relay: &RelayProcess, says: &str) {
        writers::write(&self.outbox.client, &self.keys).await;
        wait_until(&format!("the relay is not ready: {says}"), STALLED, async || {
            relay.not_ready().await.is_some_and(|why| why.contains(says))
        })
        .await;
        assert!(self.outbox.unsent().await > 0);
    }

    /// Checks that the relay is ready again without a restart, that everything is published exactly once, and that the
    /// log has two lines about the outage.
    async fn assert_resumed(self, relay: RelayProcess, what: &str, since: Instant) {
        self.assert_resumed_after(1, relay, what, since).await;
    }

    /// The same after this many outages.
    async fn assert_resumed_after(self, outages: usize, mut relay: RelayProcess, what: &str, since: Instant) {
        writers::write(&self.outbox.client, &self.keys).await;
        self.outbox.wait_until_drained(STALLED).await;
        let took = since.elapsed();
        assert_within(&format!("{what}: drained"), took, world::RESUMED_WITHIN);
        wait_until("the relay is ready", STALLED, async || relay.not_ready().await.is_none()).await;
        world::wait_for_outages(&relay, outages).await;
        assert!(relay.is_running());
        world::verdict(&self.outbox, &mut [relay], what).await.assert_exact();
        let role = self.role;
        run(&self.outbox.client, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
        self.outbox.drop().await;
    }
}

#[tokio::test]
async fn relay_waits_for_revoked_privileges() {
    let setup = Setup::create("revoked").await;
    let role = setup.role.clone();
    let relay = setup.relay().start().await;
    run(&setup.outbox.client, &format!("REVOKE ALL ON app.outbox FROM {role}")).await;
    setup.wait_until_not_ready(&relay, "permission denied").await;
    run(&setup.outbox.client, &relay_grants(&"app.outbox".parse().unwrap(), &role)).await;
    setup.assert_resumed(relay, "privileges revoked", Instant::now()).await;
}

/// Reading works, but acknowledged rows cannot be settled.
#[tokio::test]
async fn relay_waits_for_the_revoked_privilege_to_settle_and_repeats_nothing() {
    let setup = Setup::create("revoked_settle").await;
    let role = setup.role.clone();
    let relay = setup.relay().start().await;
    run(&setup.outbox.client, &format!("REVOKE UPDATE (sent_at) ON app.outbox FROM {role}")).await;
    setup.wait_until_not_ready(&relay, "permission denied").await;
    run(&setup.outbox.client, &relay_grants(&"app.outbox".parse().unwrap(), &role)).await;
    setup.assert_resumed(relay, "privilege to settle revoked", Instant::now()).await;
}

#[tokio::test]
async fn rotated_password_is_read_again() {
    let server = PostgresServer::start(&[]).await;
    let setup = Setup::of(Outbox::create_on(&server, "rotated", 3).await).await;
    let role = setup.role.clone();
    let hba = server.data().join("pg_hba.conf");
    let rules = std::fs::read_to_string(&hba).unwrap();
    // In clear text, because SCRAM takes most of a second in a build without optimization.
    std::fs::write(&hba, format!("host all {role} 127.0.0.1/32 scram-sha-256\n{rules}")).unwrap();
    server.reload();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("url");
    let write = |password: &str| std::fs::write(&file, setup.url(password)).unwrap();
    write("first");
    let relay = world::relay(&setup.outbox).unset("postgres", "url").set(
        "postgres",
        "url_file",
        file.to_str().unwrap(),
    );
    let relay = relay.start().await;
    run(&setup.outbox.client, &format!("ALTER ROLE {role} PASSWORD 'second'")).await;
    let outages = setup.shut_out(&relay, "password authentication failed").await;
    write("second");
    setup.assert_resumed_after(outages, relay, "password rotated", Instant::now()).await;
}

/// The command prints a password that expires, as that of Amazon RDS with IAM does.
#[tokio::test]
async fn password_command_is_run_for_each_connection() {
    let server = PostgresServer::start(&[]).await;
    let setup = Setup::of(Outbox::create_on(&server, "commanded", 3).await).await;
    let role = setup.role.clone();
    let hba = server.data().join("pg_hba.conf");
    let rules = std::fs::read_to_string(&hba).unwrap();
    std::fs::write(&hba, format!("host all {role} 127.0.0.1/32 scram-sha-256\n{rules}")).unwrap();
    server.reload();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "first\n").unwrap();
    let command = vec!["head", "-n", "1", file.to_str().unwrap()];
    let relay = world::relay(&setup.outbox).set("postgres", "url", setup.url("none")).set(
        "postgres",
        "password_command",
        command,
    );
    let relay = relay.start().await;
    writers::write(&setup.outbox.client, &setup.keys).await;
    setup.outbox.wait_until_drained(STALLED).await;
    // The password that was read for the connections that end now has expired.
    std::fs::write(&file, "second\n").unwrap();
    run(&setup.outbox.client, &format!("ALTER ROLE {role} PASSWORD 'second'")).await;
    setup.terminate().await;
    writers::write(&setup.outbox.client, &setup.keys).await;
    setup.outbox.wait_until_drained(STALLED).await;
    assert!(!relay.log().contains("authentication failed"), "{}", relay.log());
    std::fs::write(&file, "").unwrap();
    let outages = setup.shut_out(&relay, "password_command did not print a password").await;
    std::fs::write(&file, "second\n").unwrap();
    setup.assert_resumed_after(outages, relay, "password printed by a command", Instant::now()).await;
}

#[tokio::test]
async fn reload_applies_a_new_password_in_the_configuration() {
    let server = PostgresServer::start(&[]).await;
    let setup = Setup::of(Outbox::create_on(&server, "reloaded", 3).await).await;
    let role = setup.role.clone();
    let hba = server.data().join("pg_hba.conf");
    let rules = std::fs::read_to_string(&hba).unwrap();
    std::fs::write(&hba, format!("host all {role} 127.0.0.1/32 scram-sha-256\n{rules}")).unwrap();
    server.reload();
    // The password in the URL is wrong. The separate setting takes precedence.
    let url = setup.url("none");
    let with = |password: &str| {
        world::relay(&setup.outbox).set("postgres", "url", url.clone()).set("postgres", "password", password)
    };
    let relay = with("first").start().await;
    run(&setup.outbox.client, &format!("ALTER ROLE {role} PASSWORD 'second'")).await;
    let outages = setup.shut_out(&relay, "password authentication failed").await;
    relay.reload(with("second"));
    let begun = Instant::now();
    setup.assert_resumed_after(outages, relay, "password reloaded", begun).await;
}

#[tokio::test]
async fn relay_waits_for_a_server_without_a_free_connection() {
    let server = PostgresServer::start(&[("max_connections", "24")]).await;
    let setup = Setup::of(Outbox::create_on(&server, "too_many", 3).await).await;
    let relay = setup.relay().start().await;
    // Another user takes every free connection until the relay has none.
    run(&setup.outbox.client, "CREATE ROLE greedy LOGIN").await;
    let mut taken: Vec<Client> = Vec::new();
    // A connection of the relay that is still being opened has no role in pg_stat_activity yet, but it has a slot.
    let free = "SELECT current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
                       - count(*)
                FROM pg_stat_activity
                WHERE backend_type = 'client backend' AND usename IN ('postgres', 'greedy')";
    wait_until("all connections are taken", STALLED, async || {
        setup.terminate().await;
        loop {
            let url = setup.outbox.database.url().replace("postgres@", "greedy@");
            match tokio_postgres::connect(&url, tokio_postgres::NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(connection);
                    taken.push(client);
                }
                Err(_) => break,
            }
        }
        setup.outbox.count(free).await <= 0
    })
    .await;
    setup.wait_until_not_ready(&relay, "SQLSTATE 53300").await;
    // The connections were taken one by one, which caused several outages.
    let outages = relay.log().matches(world::FAILS).count();
    taken.clear();
    setup.assert_resumed_after(outages, relay, "too many connections", Instant::now()).await;
}

/// The relay requests READ WRITE itself, so a read-only default does not affect it unless the URL asks for a writable
/// server.
#[tokio::test]
async fn read_only_default_matters_only_if_the_url_asks_for_a_writable_server() {
    let setup = Setup::create("read_only").await;
    let role = setup.role.clone();
    let url = format!("{}?target_session_attrs=read-write", setup.url("first"));
    let asks = setup.relay().set("postgres", "url", url).start().await;
    run(&setup.outbox.client, &format!("ALTER ROLE {role} SET default_transaction_read_only = on")).await;
    let outages = setup.shut_out(&asks, "database does not allow writes").await;
    let mut asks_not = setup.relay().start().await;
    writers::write(&setup.outbox.client, &setup.keys).await;
    setup.outbox.wait_until_drained(STALLED).await;
    assert!(asks_not.stop().await.success());
    run(&setup.outbox.client, &format!("ALTER ROLE {role} RESET default_transaction_read_only")).await;
    setup.assert_resumed_after(outages, asks, "read-only by default", Instant::now()).await;
}

/// A primary that restarts as a standby is read-only. The relay only has to wait.
#[tokio::test]
async fn relay_waits_for_a_primary_that_became_a_standby_until_it_is_promoted() {
    let mut server = PostgresServer::start(&[]).await;
    let mut setup = Setup::of(Outbox::create_on(&server, "demoted", 3).await).await;
    let relay = setup.relay().start().await;
    writers::write(&setup.outbox.client, &setup.keys).await;
    server.stop(Shutdown::Fast);
    server.become_standby();
    server.start_again().await;
    wait_until("the relay is not ready", STALLED, async || {
        relay.not_ready().await.is_some_and(|why| why.contains("recovery") || why.contains("read-only"))
    })
    .await;
    println!("on a standby: {}", relay.not_ready().await.unwrap_or_default());
    server.promote().await;
    let promoted = Instant::now();
    setup.outbox.reconnect().await;
    setup.assert_resumed(relay, "read-only standby", promoted).await;
}

/// A standby that answers does not hide why the other host failed.
#[tokio::test]
async fn refusal_of_a_standby_includes_the_error_of_the_other_host() {
    let mut server = PostgresServer::start(&[]).await;
    let mut setup = Setup::of(Outbox::create_on(&server, "hidden", 3).await).await;
    // Nothing listens on the port of the first host.
    let hosts = setup.url("first").replace("@127.0.0.1:", "@127.0.0.1:1,127.0.0.1:");
    let url = format!("{hosts}?target_session_attrs=read-write");
    let relay = setup.relay().set("postgres", "url", url).start().await;
    writers::write(&setup.outbox.client, &setup.keys).await;
    server.stop(Shutdown::Fast);
    server.become_standby();
    server.start_again().await;
    wait_until("the relay is not ready for both reasons", STALLED, async || {
        relay.not_ready().await.is_some_and(|why| {
            why.contains("database does not allow writes; another address: ")
                && why.contains("Connection refused")
        })
    })
    .await;
    server.promote().await;
    let promoted = Instant::now();
    setup.outbox.reconnect().await;
    setup.assert_resumed(relay, "standby next to a host that is down", promoted).await;
}

/// The rows of a settlement that takes longer than the relay's statement_timeout, 30 s, are acknowledged nevertheless.
#[tokio::test]
async fn statement_timeout_repeats_nothing() {
    const SLOW: &str = "
        CREATE FUNCTION app.slow() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN PERFORM pg_sleep(60); RETURN NEW; END $$;
        CREATE TRIGGER slow BEFORE UPDATE ON app.outbox FOR EACH STATEMENT EXECUTE FUNCTION app.slow()";
    let setup = Setup::create("timeout").await;
    let relay = setup.relay().start().await;
    run(&setup.outbox.client, SLOW).await;
    setup.wait_until_not_ready(&relay, "SQLSTATE 57014").await;
    run(&setup.outbox.client, "DROP TRIGGER slow ON app.outbox").await;
    setup.assert_resumed(relay, "statement timed out", Instant::now()).await;
}

/// Checks the log of a long outage, which the other tests rely on.
#[tokio::test]
async fn outage_is_two_lines_in_the_log_however_long_it_lasts() {
    let mut server = PostgresServer::start(&[]).await;
    let outbox = Outbox::create_on(&server, "two_lines", 3).await;
    let keys = outbox.add_aggregates("order", 20).await;
    let relay = world::relay(&outbox).set("log", "level", "info").start().await;
    let writers = Writers::start(
        &outbox,
        &keys,
        writers::Load { survives_outages: true, pause: Duration::from_millis(5), ..writers::Load::default() },
    )
    .await;
    outbox.wait_until_settled(100, STALLED).await;
    let before = relay.log().lines().count();
    server.stop(Shutdown::Immediate);
    wait_until("the relay is not ready", STALLED, async || relay.not_ready().await.is_some()).await;
    tokio::time::sleep(Duration::from_secs(6)).await; // the outage
    server.start_again().await;
    world::wait_for_outages(&relay, 1).await;
    let log = relay.log();
    let lines: Vec<&str> = log.lines().skip(before).collect();
    println!("{}", lines.join("\n"));
    assert_eq!(lines.len(), 2, "{}", lines.join("\n"));
    writers.stop().await;
    let mut outbox = outbox;
    outbox.reconnect().await;
    world::verdict(&outbox, &mut [relay], "a long outage").await;
}
