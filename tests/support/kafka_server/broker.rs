//! One broker: its process, its ports and its log.

use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::net::TcpSocket;

use super::super::wait::wait_until;

const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// Not that of the shared cluster.
const CLUSTER_ID: &str = "outbox-relay-private-w";
const LOG_LINES_SHOWN: usize = 20;

/// One broker and its data.
pub struct Broker {
    pub(super) number: usize,
    pub(super) port: Port,
    pub(super) listeners: Vec<(&'static str, Port)>,
    pub(super) system_properties: Vec<String>,
    pub(super) classes: Option<PathBuf>,
    pub(super) folder: PathBuf,
    pub(super) process: Option<Child>,
    pub(super) _controller: Option<Port>,
}

impl Broker {
    /// The address of its plain listener.
    pub fn address(&self) -> String {
        self.port.address.to_string()
    }

    /// Sends SIGKILL and waits until the process is dead.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Sends SIGTERM and waits until the process has ended.
    pub async fn stop(&mut self) {
        self.signal(Signal::TERM);
        let Some(mut process) = self.process.take() else { return };
        let what = format!("broker {} has ended", self.number);
        wait_until(&what, STOP_TIMEOUT, async || process.try_wait().unwrap().is_some()).await;
    }

    /// Sends SIGSTOP: connections stay open, but the broker does not answer.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Sends SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Starts the process unless it is running. Does not wait until the broker answers.
    pub fn launch(&mut self) {
        if self.process.is_some() {
            return;
        }
        let log = File::options().create(true).append(true).open(self.folder.join("log")).unwrap();
        let mut command = java_with("320m", self.classes.as_deref());
        command
            .args([
                "-Dorg.slf4j.simpleLogger.showDateTime=true",
                "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            ])
            .args(&self.system_properties)
            .arg("kafka.Kafka")
            .arg(self.folder.join("server.properties"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.process = Some(command.spawn().unwrap());
    }

    pub(super) fn format(&self, arguments: &[String]) {
        let kind = if self.number == 1 { "--standalone" } else { "--no-initial-controllers" };
        let output = java("128m")
            .args(["kafka.tools.StorageTool", "format", kind, "-t", CLUSTER_ID, "-c"])
            .arg(self.folder.join("server.properties"))
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "formatting broker {}: {output:?}", self.number);
    }

    fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            kill_process(Pid::from_child(process), signal).unwrap();
        }
    }

    pub(super) fn assert_running(&mut self) {
        let Some(process) = &mut self.process else { return };
        if let Some(status) = process.try_wait().unwrap() {
            panic!("broker {} ended ({status}):\n{}", self.number, self.last_log_lines());
        }
    }

    fn last_log_lines(&self) -> String {
        let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- end of the log of broker {}\n{}", self.number, self.last_log_lines());
        }
    }
}

/// A port that stays reserved while no server listens on it, so that a restarted server gets the same port.
pub(super) struct Port {
    pub(super) address: SocketAddr,
    _bound: TcpSocket,
}

impl Port {
    pub(super) fn reserve() -> Self {
        let bound = TcpSocket::new_v4().unwrap();
        bound.set_reuseaddr(true).unwrap();
        bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Self { address: bound.local_addr().unwrap(), _bound: bound }
    }
}

/// A small JVM that starts quickly. The kernel kills it when the thread that started it ends.
pub(super) fn java(heap: &str) -> Command {
    java_with(heap, None)
}

/// The same with more classes.
fn java_with(heap: &str, classes: Option<&Path>) -> Command {
    let lib = std::env::var("OUTBOX_RELAY_TEST_KAFKA_LIB").unwrap_or_else(|_| {
        panic!(
            "OUTBOX_RELAY_TEST_KAFKA_LIB is not set: run `scripts/services up`, then \
             `eval \"$(scripts/services env)\"`"
        )
    });
    let java =
        std::env::var("JAVA_HOME").map_or_else(|_| "java".to_owned(), |home| format!("{home}/bin/java"));
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", &java]);
    command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", &format!("-Xmx{heap}")]);
    // By default, the JVM prints its own warnings to stdout, where tests read the output of tools.
    command.args(["-Xlog:disable", "-Xlog:all=warning:stderr"]);
    // Without the class archive, a start takes twice as long.
    if let Ok(classes) = std::env::var("OUTBOX_RELAY_TEST_KAFKA_CLASSES") {
        command.arg(format!("-XX:SharedArchiveFile={classes}"));
    }
    // The class archive requires that the jars come first.
    let more = classes.map(|folder| format!(":{}", folder.display())).unwrap_or_default();
    command.args(["-cp", &format!("{lib}/*{more}")]);
    command
}
