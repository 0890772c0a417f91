//! A PostgreSQL server that requires TLS, and its clients.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use postgres::access::grants::relay_grants;
use tokio_postgres::Client;

use crate::support::certificates::{Files, Identity, authority};
use crate::support::checker::Report;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::postgres_server::{PostgresServer, give_to_server_user};
use crate::support::relay::{Relay, RelayProcess};
use crate::support::wait::{STALLED, wait_until};
use crate::support::writers::{Load, Writers};

const PASSWORD: &str = "an old password";
/// Logs in with a password.
pub const BY_PASSWORD: &str = "by_password";
/// Logs in with a certificate alone.
pub const BY_CERTIFICATE: &str = "by_certificate";
/// Logs in with a password and a certificate.
pub const BY_BOTH: &str = "by_both";
/// Logs in with TLS and nothing else.
pub const BY_TRUST: &str = "by_trust";

/// The tests' own superuser connects without TLS. All other roles need TLS.
const HBA: &str = "
host    all postgres       127.0.0.1/32 trust
hostssl all by_password    127.0.0.1/32 scram-sha-256
hostssl all by_certificate 127.0.0.1/32 cert
hostssl all by_both        127.0.0.1/32 scram-sha-256 clientcert=verify-full
hostssl all by_trust       127.0.0.1/32 trust
";

/// The server, an outbox on it, and the files of its clients.
pub struct Secured {
    pub server: PostgresServer,
    pub outbox: Outbox,
    pub files: Files,
    /// Signs the certificates of the server and of its clients.
    pub authority: Identity,
}

impl Secured {
    pub async fn start(test: &str) -> Self {
        let server = PostgresServer::start(&[]).await;
        let outbox = Outbox::create_on(&server, test, 3).await;
        let authority = authority("the authority");
        let files = Files::new();
        files.put("password", PASSWORD);
        let secured = Self { server, outbox, files, authority };
        for role in [BY_PASSWORD, BY_CERTIFICATE, BY_BOTH, BY_TRUST] {
            run(&secured.outbox.client, &format!("CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")).await;
            run(&secured.outbox.client, &relay_grants(&"app.outbox".parse().unwrap(), role)).await;
        }
        fs::write(secured.server.data().join("pg_hba.conf"), HBA).unwrap();
        secured.trust(&secured.authority, &secured.authority.server(&["localhost"]));
        for setting in ["ssl = on", "ssl_ca_file = 'clients.pem'"] {
            run(&secured.outbox.client, &format!("ALTER SYSTEM SET {setting}")).await;
        }
        secured.reload().await;
        secured
    }

    /// Gives the server this certificate, and the clients this authority and a certificate signed by it. Takes effect
    /// at the next reload.
    pub fn trust(&self, authority: &Identity, shown: &Identity) {
        self.show(authority, shown);
        self.give_to_clients(authority);
    }

    /// Installs the certificates on the server.
    pub fn show(&self, clients: &Identity, shown: &Identity) {
        for (name, content) in [
            ("server.crt", shown.cert_pem()),
            ("server.key", shown.key_pem()),
            ("clients.pem", clients.cert_pem()),
        ] {
            let path = self.server.data().join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            give_to_server_user(&path).unwrap();
        }
    }

    /// Gives the certificates to the clients.
    pub fn give_to_clients(&self, authority: &Identity) {
        self.files.put("ca.pem", authority.cert_pem());
        for role in [BY_CERTIFICATE, BY_BOTH] {
            let client = authority.client(role);
            self.files.put(&format!("{role}.pem"), client.cert_pem());
            self.files.put(&format!("{role}.key"), client.key_pem());
        }
    }

    /// Returns when new connections use the current files.
    pub async fn reload(&self) {
        let loaded = async |client: &Client| -> std::time::SystemTime {
            client.query_one("SELECT pg_conf_load_time()", &[]).await.unwrap().get(0)
        };
        let before = loaded(&self.server.connect().await).await;
        self.server.reload();
        wait_until("the configuration is loaded", STALLED, async || {
            loaded(&self.server.connect().await).await > before
        })
        .await;
    }

    /// A relay that logs in as this role, verifies the server's certificate and host name, and has these additional
    /// parameters.
    pub fn relay(&self, role: &str, parameters: &str) -> Relay {
        let address = self.server.address();
        let port = address.rsplit(':').next().unwrap();
        self.relay_at(
            &format!("localhost:{port}"),
            role,
            &format!("hostaddr=127.0.0.1&sslmode=verify-full{parameters}"),
        )
    }

    /// The same relay for another address.
    pub fn relay_at(&self, place: &str, role: &str, parameters: &str) -> Relay {
        let database = self.outbox.database.name();
        let ca = self.files.path("ca.pem");
        let trusted = if parameters.contains("sslrootcert") {
            String::new()
        } else {
            format!("&sslrootcert={}", ca.display())
        };
        let mut relay = self.outbox.relay();
        relay = relay.set(
            "postgres",
            "url",
            format!("postgres://{role}@{place}/{database}?{parameters}{trusted}"),
        );
        relay = relay.set("postgres", "password_file", self.files.path("password").to_str().unwrap());
        if [BY_CERTIFICATE, BY_BOTH].contains(&role) {
            let file =
                |ending: &str| self.files.path(&format!("{role}.{ending}")).to_str().unwrap().to_owned();
            relay = relay.set("postgres", "sslcert", file("pem")).set("postgres", "sslkey", file("key"));
        }
        relay
    }

    /// Checks that a row is relayed.
    pub async fn assert_works(&self, what: &str, relay: Relay) {
        let sql =
            "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', '1', 'x')";
        run(&self.outbox.client, sql).await;
        let ended = tokio::task::spawn_blocking(move || relay.command(&["run", "--once"])).await.unwrap();
        assert_eq!(ended.code, 0, "{what}: {ended}");
        assert_eq!(self.outbox.unsent().await, 0, "{what}");
    }

    /// Checks that the relay cannot log in and reports all of these texts.
    pub async fn assert_refused(&self, what: &str, relay: Relay, said: &[&str]) {
        self.assert_fails(what, relay, 69, said).await;
    }

    /// Checks that a certificate or a key is invalid, and that the relay reports all of these texts.
    pub async fn assert_invalid(&self, what: &str, relay: Relay, said: &[&str]) {
        self.assert_fails(what, relay, 78, said).await;
    }

    async fn assert_fails(&self, what: &str, relay: Relay, code: i32, said: &[&str]) {
        let ended =
            tokio::task::spawn_blocking(move || relay.command(&["check-config", "--connect"])).await.unwrap();
        println!("{what}: exit {}\n  {}", ended.code, ended.stdout.trim().replace('\n', "\n  "));
        ended.fails(code, said);
        let shown = format!("{}{}", ended.stdout, ended.stderr);
        assert!(!shown.contains(PASSWORD) && !shown.contains("a wrong password"), "{shown}");
    }

    /// Closes the connections of all relays.
    async fn cut(&self) {
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'by_both'";
        assert!(self.outbox.count(sql).await > 0, "the relay is connected");
    }

    /// Whether all connections of relays use a certificate of this authority.
    async fn all_show(&self, authority: &str) -> bool {
        let sql = format!(
            "SELECT coalesce(bool_and(issuer_dn = '/CN={authority}'), false)::int::bigint
             FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'by_both'"
        );
        self.outbox.count(&sql).await == 1
    }
}

/// Waits until the relay is not ready for a reason that contains this text.
pub async fn not_ready(relay: &RelayProcess, why: &str) {
    let mut said = None;
    wait_until(&format!("the relay is not ready: {why}"), STALLED, async || {
        said = relay.not_ready().await;
        said.as_ref().is_some_and(|said| said.contains(why))
    })
    .await;
    println!("not ready: {}", said.unwrap());
}

/// The end of a rotation: nothing is lost or out of order, and there are no dead letters.
pub async fn verdict(outbox: &Outbox, writers: Writers, mut relay: RelayProcess) -> Report {
    writers.stop().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    let report = outbox.check().await;
    println!("{report}");
    report.assert_sound();
    assert_eq!(outbox.dead_letters().await, 0);
    report
}

/// Few keys, written continuously.
pub async fn under_load(outbox: &Outbox) -> Writers {
    let keys = outbox.add_aggregates("order", 20).await;
    let load = Load { writers: 1, pause: Duration::from_millis(10), ..Load::default() };
    Writers::start(outbox, &keys, load).await
}

#[tokio::test]
async fn postgres_certificates_and_passwords_are_rotated_under_a_running_relay() {
    let secured = Secured::start("rotated").await;
    let relay = secured.relay(BY_BOTH, "&channel_binding=require").set("admin", "listen", "127.0.0.1:0");
    let relay = relay.start().await;
    let outbox = &secured.outbox;
    let writers = under_load(outbox).await;
    outbox.wait_until_settled(200, STALLED).await;
    assert!(secured.all_show("the authority").await);

    // The server changes first. The relay fails until its files are replaced, and needs no restart.
    run(&outbox.client, "ALTER ROLE by_both PASSWORD 'a new password'").await;
    outbox.wait_until_settled(200, STALLED).await;
    let next = authority("the next authority");
    secured.show(&next, &next.server(&["localhost"]));
    secured.reload().await;
    secured.cut().await;
    not_ready(&relay, "trust the authority that signed").await;
    secured.give_to_clients(&next);
    not_ready(&relay, "password authentication failed").await;
    secured.files.put("password", "a new password\n");
    let resumed = outbox.wait_until_resumed(STALLED).await;
    println!("rows are settled again {resumed:.2?} after the last file had been replaced");
    outbox.wait_until_settled(200, STALLED).await;
    assert!(secured.all_show("the next authority").await);
    verdict(outbox, writers, relay).await;
    secured.outbox.drop().await;
}
