//! The real binary as a process, which a test can kill, freeze and stop.

use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::command::{Ended, of_program, relay_binary};
use super::wait::{STALLED, wait_until};

/// The number of log lines that a failed test shows.
const LOG_LINES_SHOWN: usize = 60;

/// The configuration of a relay that a test starts. The binary is the one that cargo built with the tests, or the one
/// that `OUTBOX_RELAY_TEST_BINARY` names.
#[derive(Clone)]
pub struct Relay {
    /// A program to run instead of the relay. It reads the same configuration.
    program: Option<PathBuf>,
    config: toml::Table,
    environment: Vec<(String, OsString)>,
}

impl Relay {
    pub fn new() -> Self {
        Self { program: None, config: toml::Table::new(), environment: Vec::new() }
    }

    /// Starts this program instead of the relay.
    pub fn with_program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Sets a key. Replaces its previous value.
    pub fn set(mut self, section: &str, key: &str, value: impl Into<toml::Value>) -> Self {
        let section = self.config.entry(section).or_insert_with(|| toml::Table::new().into());
        section.as_table_mut().unwrap().insert(key.to_owned(), value.into());
        self
    }

    /// Sets a key of a nested table, such as `[kafka.oauth]`.
    pub fn set_inner(mut self, section: &str, table: &str, key: &str, value: impl Into<toml::Value>) -> Self {
        let section = self.config.entry(section).or_insert_with(|| toml::Table::new().into());
        let table = section.as_table_mut().unwrap().entry(table).or_insert_with(|| toml::Table::new().into());
        table.as_table_mut().unwrap().insert(key.to_owned(), value.into());
        self
    }

    /// Removes a key.
    pub fn unset(mut self, section: &str, key: &str) -> Self {
        self.config[section].as_table_mut().unwrap().remove(key);
        self
    }

    /// Sets a property of librdkafka.
    pub fn set_kafka_property(mut self, name: &str, value: &str) -> Self {
        let kafka = self.config.entry("kafka").or_insert_with(|| toml::Table::new().into());
        let properties = kafka.as_table_mut().unwrap().entry("properties");
        let properties = properties.or_insert_with(|| toml::Table::new().into());
        properties.as_table_mut().unwrap().insert(name.to_owned(), value.into());
        self
    }

    /// Sets an environment variable of the process.
    pub fn set_environment(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    /// Starts `run` and waits until the relay has started.
    pub async fn start(self) -> RelayProcess {
        let mut relay = self.spawn(&["run"]);
        relay.wait_for_log("relay started").await;
        relay
    }

    /// Writes the configuration into a folder, for tests that start the relay in another way. Returns the path.
    pub fn write_config(&self, folder: &Path) -> PathBuf {
        let config = folder.join("relay.toml");
        self.write(&config);
        config
    }

    /// Writes the configuration for a command that the test starts itself.
    pub fn write(&self, config: &Path) {
        std::fs::write(config, toml::to_string(&self.config).unwrap()).unwrap();
    }

    /// Runs a command with `--config` until it ends.
    pub fn command(self, command: &[&str]) -> Ended {
        let folder = tempfile::tempdir().unwrap();
        let config = self.write_config(folder.path());
        let program = self.program.unwrap_or_else(relay_binary);
        Ended::of(of_program(&program).args(command).envs(self.environment).arg("--config").arg(&config))
    }

    /// Starts a command with `--config` without waiting.
    pub fn spawn(self, command: &[&str]) -> RelayProcess {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("relay-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("relay.toml");
        let named = self.set("postgres", "application_name", name.clone());
        std::fs::write(&config, toml::to_string(&named.config).unwrap()).unwrap();
        let tested = || std::env::var_os("OUTBOX_RELAY_TEST_BINARY").map_or_else(relay_binary, PathBuf::from);
        let program = named.program.unwrap_or_else(tested);
        let process = Command::new(program)
            .args(command)
            .envs(named.environment)
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(File::create(folder.path().join("stdout")).unwrap())
            .stderr(File::create(folder.path().join("stderr")).unwrap())
            .spawn()
            .unwrap();
        RelayProcess { name, folder, process }
    }
}

/// A relay that runs or has run. Dropping it kills the process.
pub struct RelayProcess {
    /// Its application_name in pg_stat_activity.
    pub name: String,
    folder: TempDir,
    process: Child,
}

impl RelayProcess {
    /// The log so far.
    pub fn log(&self) -> String {
        self.read("stderr")
    }

    /// The output so far, without the log.
    pub fn stdout(&self) -> String {
        self.read("stdout")
    }

    /// Waits for a text in the log. Fails the test if the process ends first.
    pub async fn wait_for_log(&mut self, text: &str) {
        wait_until(&format!("{} logs {text:?}", self.name), STALLED, async || {
            if self.log().contains(text) {
                return true;
            }
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "{} ended before it logged {text:?}: {ended:?}", self.name);
            false
        })
        .await;
    }

    pub fn is_running(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    /// Sends SIGKILL and waits until the process is dead.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Sends SIGTERM and waits until the process has ended.
    pub async fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.ended().await
    }

    /// Sends SIGSTOP: the process stops running, but its connections stay open.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Sends SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits until the process has ended.
    pub async fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        let what = format!("{} has ended", self.name);
        wait_until(&what, STALLED, async || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap()
    }

    /// The current resident memory of the process, in bytes.
    pub fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// The peak resident memory of the process, in bytes.
    pub fn resident_max(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kilobytes * 1_024
    }

    /// Replaces the configuration file and sends SIGHUP.
    pub fn reload(&self, relay: Relay) {
        let named = relay.set("postgres", "application_name", self.name.clone());
        self.reload_text(&toml::to_string(&named.config).unwrap());
    }

    /// The same with any text.
    pub fn reload_text(&self, text: &str) {
        std::fs::write(self.folder.path().join("relay.toml"), text).unwrap();
        self.signal(Signal::HUP);
    }

    /// The value of a metric in `/metrics`, by its name with its labels. Needs `[admin] listen`.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics").await.unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        Some(value.parse().unwrap())
    }

    /// The reason in `/readyz`, or None while the relay is ready. Needs `[admin] listen`.
    pub async fn not_ready(&self) -> Option<String> {
        self.try_readiness().await.unwrap()
    }

    /// The same for a relay that may end at the same time.
    pub async fn try_readiness(&self) -> std::io::Result<Option<String>> {
        let (status, body) = self.get("/readyz").await?;
        Ok((status != 200).then(|| body.trim_end().to_owned()))
    }

    /// Status and body of a response of the admin endpoint. Needs `[admin] listen`.
    pub async fn get(&self, path: &str) -> std::io::Result<(u16, String)> {
        let mut stream = TcpStream::connect(self.address()).await?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok((status.ok_or(std::io::ErrorKind::InvalidData)?, body.to_owned()))
    }

    /// The address of the admin endpoint. Needs `[admin] listen`.
    pub fn address(&self) -> String {
        let log = self.log();
        let (_, address) =
            log.split_once("serving metrics and health checks at http://").expect("[admin] listen is set");
        address.split('/').next().unwrap().to_owned()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn read(&self, file: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.folder.path().join(file)).unwrap()).into_owned()
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        // An error means that the process has already ended.
        _ = self.process.kill();
        _ = self.process.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
            eprintln!("--- log of {}, its last {} lines\n{}", self.name, shown.len(), shown.join("\n"));
        }
    }
}
