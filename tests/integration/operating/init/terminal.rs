//! `init` on a terminal, which asks for what the arguments leave out.

use std::io::{ErrorKind, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};

use super::World;
use crate::support::command::relay_binary;
use crate::support::topics::{self, Cluster};
use crate::support::wait::STALLED;

/// A command on a terminal, which `script` of util-linux provides.
struct Terminal {
    child: Child,
    stdin: ChildStdin,
    output: Receiver<Vec<u8>>,
    shown: String,
}

impl Terminal {
    /// `None` where `script` is not installed.
    fn run(line: &str) -> Option<Terminal> {
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--flush", "--command", line, "/dev/null"]);
        command
            .env_remove("PGPASSWORD")
            .env_remove("OUTBOX_RELAY_CONFIG")
            .env("OUTBOX_RELAY__ADMIN__LISTEN", "off");
        let mut child = match command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                eprintln!("SKIPPED: script is not installed");
                return None;
            }
            Err(error) => panic!("script: {error}"),
        };
        let (stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, output) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = stdout.read(&mut buffer) {
                if send.send(buffer[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Some(Terminal { child, stdin, output, shown: String::new() })
    }

    /// Waits for a question, then answers it.
    fn answer(&mut self, question: &str, answer: &str) {
        let begun = self.shown.len();
        while !self.shown[begun..].contains(question) {
            let part = self.output.recv_timeout(STALLED);
            let part = part.unwrap_or_else(|error| panic!("{question:?}: {error}\n{}", self.shown));
            self.shown.push_str(&String::from_utf8_lossy(&part));
        }
        writeln!(self.stdin, "{answer}").unwrap();
    }

    /// The exit code, and everything that the terminal showed.
    fn end(mut self) -> (Option<i32>, String) {
        while let Ok(part) = self.output.recv_timeout(STALLED) {
            self.shown.push_str(&String::from_utf8_lossy(&part));
        }
        (self.child.wait().unwrap().code(), self.shown)
    }
}

#[tokio::test]
async fn missing_settings_are_asked_for_and_the_password_is_not_shown() {
    let world = World::new("init_asks").await;
    let line = format!(
        "{} init --config {} --role {}",
        relay_binary().display(),
        world.file().display(),
        world.role
    );
    let Some(mut terminal) = Terminal::run(&line) else { return world.drop().await };
    terminal.answer(
        "Database URL of a role that may create tables and roles [postgres://",
        &world.database.url(),
    );
    terminal.answer("Password of that role", "hunter2");
    terminal.answer("Kafka brokers [localhost:9092]", &topics::bootstrap());
    terminal.answer("Topics to create", &world.topic);
    terminal.answer("Continue? [y/N]", "no");
    let (code, shown) = terminal.end();
    assert_eq!(code, Some(1), "{shown}");
    assert!(shown.contains("Canceled. Nothing was changed.") && !shown.contains("hunter2"), "{shown}");
    world.assert_nothing_exists().await;

    let mut terminal = Terminal::run(&line).unwrap();
    terminal.answer("Database URL of a role that may create tables and roles", &world.database.url());
    terminal.answer("Password of that role", "");
    terminal.answer("Kafka brokers", &topics::bootstrap());
    terminal.answer("Topics to create", &world.topic);
    terminal.answer("Continue? [y/N]", "y");
    let (code, shown) = terminal.end();
    assert_eq!(code, Some(0), "{shown}");
    assert!(!shown.contains(&world.password()), "{shown}");
    assert_eq!(Cluster::shared().partitions(&world.topic), 3);
    world.drop().await;
}
