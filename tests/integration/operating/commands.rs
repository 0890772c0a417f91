//! The commands as an operator runs them: the real binary, its output and its exit codes.

mod admin;
mod configuration;
mod operate;
mod schema;
mod servers;

pub use crate::support::command::{Ended, binary};
use crate::support::database::{Database, run};
use crate::support::roles::Roles;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;
use tempfile::TempDir;
use tokio::net::TcpSocket;
use tokio_postgres::Client;

/// An outbox `app.outbox` in a separate database, with matching configuration files. Each command connects with the
/// role that is intended for it.
pub struct Setup {
    pub database: Database,
    pub client: Client,
    pub folder: TempDir,
    roles: Option<Roles>,
}

/// The user that runs a command.
const OWNER: &str = "owner.toml";
const RELAY: &str = "relay.toml";
const ON_CALL: &str = "on-call.toml";

impl Setup {
    /// A database without the tables.
    pub async fn empty(test: &str) -> Setup {
        let database = Database::create(test).await;
        let client = database.connect().await;
        let setup = Setup { database, client, folder: tempfile::tempdir().unwrap(), roles: None };
        setup.configure(&setup.database.url(), &kafka());
        setup
    }

    pub async fn migrated(test: &str) -> Setup {
        let mut setup = Setup::empty(test).await;
        setup.relay(&["migrate"]).succeeds();
        let roles = Roles::create(&setup.client, &"app.outbox".parse().unwrap()).await;
        setup.write(RELAY, &setup.database.url_of(roles.relay()), &kafka());
        setup.write(ON_CALL, &setup.database.url_of(&roles.on_call()), &kafka());
        setup.roles = Some(roles);
        setup
    }

    /// The roles. The tables must exist.
    pub fn roles(&self) -> &Roles {
        self.roles.as_ref().expect("the outbox must be migrated")
    }

    /// Writes the same configuration for every user.
    pub fn configure(&self, postgres: &str, kafka: &str) {
        for file in [OWNER, RELAY, ON_CALL] {
            self.write(file, postgres, kafka);
        }
    }

    fn write(&self, file: &str, postgres: &str, kafka: &str) {
        let text = format!(
            "[postgres]\nurl = {postgres:?}\n[kafka]\nbootstrap_servers = {kafka:?}\n[outbox]\ntable = \
             \"app.outbox\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[reaper]\nretention = \"1h\"\nbatch_size = 100\n"
        );
        std::fs::write(self.folder.path().join(file), text).unwrap();
    }

    /// The configuration of the relay.
    pub fn config(&self) -> PathBuf {
        self.folder.path().join(RELAY)
    }

    /// The binary with these arguments, and the configuration of the user that runs this command.
    pub fn command(&self, args: &[&str]) -> Command {
        let file = match args[0] {
            "run" | "check-config" => RELAY,
            "migrate" => OWNER,
            _ => ON_CALL,
        };
        let mut command = binary(args);
        command.arg("--config").arg(self.folder.path().join(file));
        command
    }

    /// Runs the command until it ends.
    pub fn relay(&self, args: &[&str]) -> Ended {
        Ended::of(&mut self.command(args))
    }

    pub async fn sql(&self, sql: &str) {
        run(&self.client, sql).await;
    }

    pub async fn number(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// For the end of a passed test.
    pub async fn drop(self, roles: &[&str]) {
        drop(self.client);
        let made: Vec<String> = self.roles.iter().flat_map(Roles::names).collect();
        let all: Vec<&str> = made.iter().map(String::as_str).chain(roles.iter().copied()).collect();
        self.database.drop(&all).await;
    }
}

/// The bootstrap server of the test cluster.
pub fn kafka() -> String {
    std::env::var("OUTBOX_RELAY_TEST_KAFKA").expect(
        "OUTBOX_RELAY_TEST_KAFKA is not set: run `scripts/services up`, then `eval \"$(scripts/services env)\"`",
    )
}

/// A local address where nothing listens. Its port stays reserved, so that no other test gets it.
pub fn nowhere() -> String {
    static RESERVED: LazyLock<TcpSocket> = LazyLock::new(|| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        socket
    });
    RESERVED.local_addr().unwrap().to_string()
}
