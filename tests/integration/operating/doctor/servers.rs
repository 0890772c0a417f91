//! Servers that are unavailable, remote, or have another clock.

use super::{Found, World};
use crate::operating::commands::nowhere;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::postgres_server::{PostgresServer, give_to_server_user};
use crate::support::wait::{STALLED, wait_until};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[tokio::test]
async fn without_kafka_the_database_is_still_examined() {
    let world = World::new("doctor_no_kafka").await;
    world.sql("ALTER TABLE app.outbox SET (autovacuum_enabled = off)").await;
    let away = world.relay.clone().set("kafka", "bootstrap_servers", nowhere());
    let found = Found::by(&away);
    found.has("kafka-unreachable", "no broker reachable at");
    found.has("autovacuum-off", "off for this table");
    assert_eq!(found.exit, 1);
    world.doctor().has_not("kafka-unreachable");
    world.drop().await;
}

#[tokio::test]
async fn without_postgres_or_a_configuration_there_are_no_findings_but_an_exit_code() {
    let world = World::new("doctor_no_postgres").await;
    let away =
        world.relay.clone().set("postgres", "url", format!("postgres://relay:hunter2@{}/app", nowhere()));
    for args in [&["doctor"][..], &["doctor", "--json"]] {
        let ended = away.clone().command(args);
        ended.fails(69, &["connecting to PostgreSQL"]);
        assert!(ended.stdout.is_empty() && !ended.stderr.contains("hunter2"), "{ended}");
    }
    world.relay.clone().set("relay", "workers", 0).command(&["doctor"]).fails(78, &["workers"]);
    world.drop().await;
}

/// 0.0.0.0 is this machine, but not one of the addresses that are known to be local.
#[tokio::test]
async fn remote_connection_without_tls_is_found() {
    let server = PostgresServer::start(&[]).await;
    let world = World::of(Outbox::create_on(&server, "doctor_tls", 1).await).await;
    let far = world.outbox.database.url().replacen("127.0.0.1", "0.0.0.0", 1);
    let far = far.replacen("postgres@", &format!("{}@", world.role), 1);
    let far = world.relay.clone().set("postgres", "url", far);
    for mode in ["disable", "prefer"] {
        let found = Found::by(&far.clone().set("postgres", "sslmode", mode));
        found.has("tls-off", &format!("sslmode is {mode}, and the connection"));
        found.has_not("tls-unverified");
    }

    let certificate = with_certificate(&server);
    for (name, value) in [("ssl_cert_file", "server.crt"), ("ssl_key_file", "server.key"), ("ssl", "on")] {
        run(&world.outbox.client, &format!("ALTER SYSTEM SET {name} = '{value}'")).await;
    }
    run(&world.outbox.client, "SELECT pg_reload_conf()").await;
    let preferred = far.clone().set("postgres", "sslmode", "prefer");
    wait_until("the server supports TLS", STALLED, async || {
        !Found::by(&preferred).codes().contains(&"tls-off")
    })
    .await;
    let found = Found::by(&preferred);
    found.has("tls-unverified", "sslmode is prefer, and the host is remote");
    found.has_not("tls-off");
    let verified = far.set("postgres", "sslmode", "verify-full");
    let verified = Found::by(&verified.set("postgres", "sslrootcert", certificate));
    verified.has_not("tls-unverified");
    verified.has_not("tls-off");
    world.drop().await;
}

/// Creates a certificate for 0.0.0.0 in the server's folder, and returns its path.
fn with_certificate(server: &PostgresServer) -> String {
    let path = |name: &str| server.data().join(name).to_string_lossy().into_owned();
    let (certificate, key) = (path("server.crt"), path("server.key"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=test"])
        .args(["-addext", "subjectAltName=IP:0.0.0.0", "-keyout", &key, "-out", &certificate])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    for file in [&certificate, &key] {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
        give_to_server_user(file.as_ref()).unwrap();
    }
    certificate
}

/// On a Unix socket, the server has no timeout for a relay that freezes while it reads.
#[tokio::test]
async fn unix_socket_is_found_and_tcp_is_not() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let directory = folder.path().to_str().unwrap();
    let server = PostgresServer::start(&[("unix_socket_directories", &format!("'{directory}'"))]).await;
    let world = World::of(Outbox::create_on(&server, "doctor_socket", 1).await).await;
    world.doctor().has_not("unix-socket");
    let (_, port) =
        server.address().rsplit_once(':').map(|(host, port)| (host.to_owned(), port.to_owned())).unwrap();
    let (role, database) = (&world.role, world.outbox.database.name());
    let url = format!("host={directory} port={port} user={role} dbname={database}");
    let found = Found::by(&world.relay.clone().set("postgres", "url", url));
    let remedy = found.has("unix-socket", "tcp_user_timeout has no effect");
    assert!(remedy.contains("host=127.0.0.1"), "{remedy}");
    assert_eq!(found.exit, 0);
    world.drop().await;
}

#[tokio::test]
async fn kafka_without_tls_on_the_network_is_found() {
    let world = World::new("doctor_kafka_tls").await;
    let local = world.outbox.cluster.bootstrap.clone();
    let (_, port) = local.rsplit_once(':').unwrap();
    let far = world.relay.clone().set("kafka", "bootstrap_servers", format!("0.0.0.0:{port}"));
    Found::by(&far).has("kafka-tls-off", "security.protocol is plaintext");
    world.doctor().has_not("kafka-tls-off");
    world.drop().await;
}

/// In this database, the server has another clock: a function replaces the server's.
#[tokio::test]
async fn clock_skew_is_found() {
    let world = World::new("doctor_clock").await;
    world.sql("ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO real_clock").await;
    let with_clock = |offset: &str| {
        format!(
            "CREATE OR REPLACE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$
             SELECT pg_catalog.real_clock() + interval '{offset}' $$"
        )
    };
    world.sql(&with_clock("1 minute")).await;
    let ahead = world.doctor();
    ahead.has("clock-skew", "ahead of the clock of this machine");
    world.sql(&with_clock("-1 minute")).await;
    world.doctor().has("clock-skew", "behind the clock of this machine");
    world.sql(&with_clock("1 second")).await;
    world.doctor().has_not("clock-skew");
    world.drop().await;
}
