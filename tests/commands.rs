//! The commands as a person runs them: the real binary, its output and its exit codes.

mod admin;
mod configuration;
mod operate;
mod schema;
mod servers;

pub use crate::support::command::{Ended, binary};
use crate::support::database::{Database, run};
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;
use tokio_postgres::Client;

/// An outbox `app.outbox` in a database of its own, with a configuration file that fits.
pub struct Setup {
    pub database: Database,
    pub client: Client,
    pub folder: TempDir,
}

impl Setup {
    /// Without the tables.
    pub async fn empty(test: &str) -> Setup {
        let database = Database::create(test).await;
        let client = database.connect().await;
        let setup = Setup { database, client, folder: tempfile::tempdir().unwrap() };
        setup.configure(&setup.database.url(), &kafka());
        setup
    }

    pub async fn migrated(test: &str) -> Setup {
        let setup = Setup::empty(test).await;
        setup.relay(&["migrate"]).succeeds();
        setup
    }

    pub fn configure(&self, postgres: &str, kafka: &str) {
        let text = format!(
            "[postgres]\nurl = {postgres:?}\n[kafka]\nbootstrap_servers = {kafka:?}\n[outbox]\ntable = \
             \"app.outbox\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[reaper]\nretention = \"1h\"\nbatch_size = 100\n"
        );
        std::fs::write(self.config(), text).unwrap();
    }

    pub fn config(&self) -> PathBuf {
        self.folder.path().join("config.toml")
    }

    /// The binary with these arguments and this configuration.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = binary(args);
        command.arg("--config").arg(self.config());
        command
    }

    /// Runs it to its end.
    pub fn relay(&self, args: &[&str]) -> Ended {
        Ended::of(&mut self.command(args))
    }

    pub async fn sql(&self, sql: &str) {
        run(&self.client, sql).await;
    }

    pub async fn number(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// For the end of a test that passed.
    pub async fn drop(self, roles: &[&str]) {
        drop(self.client);
        self.database.drop(roles).await;
    }
}

/// The Kafka of the test servers.
pub fn kafka() -> String {
    std::env::var("OUTBOX_RELAY_TEST_KAFKA").expect(
        "OUTBOX_RELAY_TEST_KAFKA is not set: run `scripts/services up`, then `eval \"$(scripts/services env)\"`",
    )
}

/// An address of this machine where nothing listens.
pub fn nowhere() -> String {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    taken.local_addr().unwrap().to_string()
}
