//! `status --watch`, which redraws the screen repeatedly.

use super::{EVENT, STALLED, World};
use crate::support::command::binary;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::postgres_server::{PostgresServer, Shutdown};
use crate::support::relay::Relay;
use crate::support::wait::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A running command, and its output so far.
struct Watching {
    folder: TempDir,
    process: Child,
}

impl Watching {
    fn start(relay: &Relay, args: &[&str]) -> Watching {
        Watching::of(relay, |config| {
            let mut command = binary(args);
            command.arg("--config").arg(config).stdin(Stdio::null());
            command
        })
    }

    fn of(relay: &Relay, command: impl FnOnce(&str) -> Command) -> Watching {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("relay.toml");
        relay.write(&config);
        let file = |name| File::create(folder.path().join(name)).unwrap();
        let mut command = command(config.to_str().unwrap());
        let process = command.stdout(file("stdout")).stderr(file("stderr")).spawn().unwrap();
        Watching { folder, process }
    }

    fn stdout(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("stdout")).unwrap()
    }

    /// Waits until it prints new output that contains this text.
    async fn writes(&mut self, text: &str) {
        let seen = self.stdout().len();
        wait_until(&format!("the output contains {text:?}"), STALLED, async || {
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "the command ended: {ended:?}\n{}", self.stdout());
            self.stdout()[seen..].contains(text)
        })
        .await;
    }

    fn interrupt(&self) {
        kill_process(Pid::from_child(&self.process), Signal::INT).unwrap();
    }

    async fn ends_with(&mut self, code: i32) {
        let mut ended = None;
        wait_until("the command ends", STALLED, async || {
            ended = self.process.try_wait().unwrap();
            ended.is_some()
        })
        .await;
        let stderr = std::fs::read_to_string(self.folder.path().join("stderr")).unwrap();
        assert_eq!(ended.unwrap().code(), Some(code), "{stderr}\n{}", self.stdout());
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // An error means that it has already ended.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

#[tokio::test]
async fn watch_survives_a_restart_of_postgres_and_ends_with_0_on_ctrl_c() {
    let mut server = PostgresServer::start(&[]).await;
    let mut world = World::of(Outbox::create_on(&server, "watch_restart", 1).await).await;
    let mut watching = Watching::start(&world.relay, &["status", "--watch", "200ms"]);
    watching.writes("unsent        0 rows\n").await;
    server.stop(Shutdown::Fast);
    watching.writes("PostgreSQL unreachable for ").await;
    watching.writes("retrying every 200ms\n              last known state, at 20").await;
    server.start_again().await;
    world.outbox.reconnect().await;
    world.sql(EVENT).await;
    watching.writes("unsent        1 row, the oldest ").await;
    assert!(!watching.stdout().contains('\x1b'), "no terminal sequences without a terminal");
    watching.interrupt();
    watching.ends_with(0).await;
    world.drop().await;
}

/// While a migration waits for its lock, queries behind it fail.
#[tokio::test]
async fn watch_survives_a_lock() {
    let world = World::new("watch_lock").await;
    let mut watching = Watching::start(&world.relay, &["status", "--watch", "200ms"]);
    watching.writes("unsent        0 rows\n").await;
    world.sql("BEGIN; LOCK TABLE app.outbox_pause IN ACCESS EXCLUSIVE MODE").await;
    watching.writes("PostgreSQL could not answer for ").await;
    world.sql("ROLLBACK").await;
    world.sql(EVENT).await;
    watching.writes("unsent        1 row, the oldest ").await;
    watching.interrupt();
    watching.ends_with(0).await;
    world.drop().await;
}

/// The counters of the server are cumulative. The sum over all lines neither misses a row nor counts one twice.
#[tokio::test]
async fn rates_add_up_to_the_inserted_and_sent_rows() {
    let world = World::new("watch_rates").await;
    let mut watching = Watching::start(&world.relay, &["status", "--watch", "200ms", "--json"]);
    watching.writes("\n").await;
    // The activity of a connection is counted at the latest when it ends.
    let writer = world.outbox.database.connect().await;
    let insert = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type)
                  SELECT 'order', i::text, 'X' FROM generate_series(1, 5000) AS i;
                  UPDATE app.outbox SET sent_at = now() WHERE id <= 3000; DELETE FROM app.outbox WHERE id <= 1000";
    run(&writer, insert).await;
    drop(writer);
    let total = |stdout: &str, field: &str| -> i64 {
        let lines = stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let rows = |line: Value| {
            let rates = &line["rates"];
            rates[field].as_f64().unwrap_or(0.0) * rates["over_seconds"].as_f64().unwrap_or(0.0)
        };
        lines.map(rows).sum::<f64>().round() as i64
    };
    let mut totals = [0; 3];
    wait_until("all rows are counted", STALLED, async || {
        let stdout = watching.stdout();
        totals = ["inserted_per_second", "sent_per_second", "deleted_per_second"]
            .map(|field| total(&stdout, field));
        totals[2] > 0
    })
    .await;
    watching.writes("\n").await;
    assert_eq!(totals, [5_000, 3_000, 1_000]);
    watching.interrupt();
    watching.ends_with(0).await;
    world.drop().await;
}

/// `script` gives the command a terminal.
#[tokio::test]
async fn on_a_terminal_each_screen_overwrites_the_last_one() {
    let world = World::new("watch_terminal").await;
    let program = env!("CARGO_BIN_EXE_outbox-relay");
    let mut watching = Watching::of(&world.relay, |config| {
        let line = format!("stty rows 5 cols 100; exec {program} status --watch 200ms --config {config}");
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).stdin(Stdio::piped());
        command
    });
    wait_until("three screens are drawn", STALLED, async || watching.stdout().matches("\x1b[H").count() >= 3)
        .await;
    let stdout = watching.stdout();
    assert_eq!(stdout.matches("\x1b[2J").count(), 1, "the screen must be cleared once: {stdout:?}");
    let screen = stdout.split("\x1b[H").nth(2).unwrap();
    assert_eq!(screen.matches("\x1b[K").count(), 4, "one of five rows must stay free: {screen:?}");
    assert!(screen.ends_with("\x1b[J\x1b[?7h"), "{screen:?}");
    watching.process.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    watching.ends_with(0).await;
    world.drop().await;
}

#[tokio::test]
async fn unreasonable_interval_is_refused() {
    for interval in ["1", "0s", "2h", "soon"] {
        let ended = crate::operating::commands::Ended::of(&mut binary(&["status", "--watch", interval]));
        ended.fails(2, &["--watch"]);
    }
}
