//! The commands as a person runs them: the real binary, its output and its exit codes.

mod admin;
mod configuration;
mod operate;
mod schema;
mod servers;

use crate::support::database::{Database, run};
use std::path::PathBuf;
use std::process::{Command, Output};
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

/// The binary, and nothing of this environment that would change what it does.
pub fn binary(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox-relay"));
    command.args(args);
    for name in ["NOTIFY_SOCKET", "JOURNAL_STREAM", "CREDENTIALS_DIRECTORY"] {
        command.env_remove(name);
    }
    command
}

/// What a command left behind.
#[derive(Debug)]
pub struct Ended {
    what: String,
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    pub fn of(command: &mut Command) -> Ended {
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ended {
            what: format!("{command:?}"),
            code: status.code().unwrap_or(-1),
            stdout: text(stdout),
            stderr: text(stderr),
        }
    }

    /// Returns what it printed.
    #[track_caller]
    pub fn succeeds(&self) -> &str {
        assert_eq!(self.code, 0, "{self}");
        &self.stdout
    }

    /// It ended with this code, and said all of these.
    #[track_caller]
    pub fn fails(&self, code: i32, said: &[&str]) {
        assert_eq!(self.code, code, "{self}");
        for said in said {
            let found = self.stderr.contains(said) || self.stdout.contains(said);
            assert!(found, "{said:?} is missing in {self}");
        }
        assert!(!self.stderr.contains("panicked"), "{self}");
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Ended { what, code, stdout, stderr } = self;
        write!(f, "{what}\nexit code {code}\nstdout:\n{stdout}\nstderr:\n{stderr}")
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
