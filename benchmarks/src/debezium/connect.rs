//! The process in which Debezium runs: a standalone Kafka Connect worker.

use super::rest::request;
use super::tuning::Tuning;
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

const STARTS_WITHIN: Duration = Duration::from_secs(120);
const CHANGES_WITHIN: Duration = Duration::from_secs(120);
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// A running worker. Dropping it kills the process.
pub struct Connect {
    process: Child,
    /// The JVM's process id, because `setpriv` replaces itself with the JVM.
    pid: u32,
    rest: SocketAddr,
    log: PathBuf,
}

impl Connect {
    /// Starts the worker with its files in `folder` and waits until it accepts requests.
    pub async fn start(jars: &Path, folder: &Path, bootstrap: &str, tuning: Tuning) -> anyhow::Result<Self> {
        // A plugin path is mandatory, although the connector is on the class path.
        std::fs::create_dir_all(folder.join("plugins"))?;
        _ = std::fs::remove_file(folder.join("offsets"));
        let rest = free_address()?;
        let properties = folder.join("worker.properties");
        std::fs::write(&properties, worker_properties(folder, bootstrap, rest))?;
        let log = folder.join("connect.log");
        let said = File::create(&log)?;
        // `setpriv` makes the kernel kill the worker when this process ends for any reason.
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", &java()])
            .args(tuning.flags())
            .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
            .arg("-cp")
            .arg(jars.join("*"))
            .arg("org.apache.kafka.connect.cli.ConnectStandalone")
            .arg(&properties)
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start Kafka Connect")?;
        let pid = process.id().context("Kafka Connect has ended")?;
        let mut connect = Self { process, pid, rest, log };
        connect.wait_until_it_answers().await?;
        Ok(connect)
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Fails if the process has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.process.try_wait()? {
            Some(ended) => bail!("Kafka Connect ended ({ended}); its log is {}", self.log.display()),
            None => Ok(()),
        }
    }

    /// Adds a connector and waits until its task is running.
    pub async fn add(&self, name: &str, settings: &Value) -> anyhow::Result<()> {
        request(self.rest, "POST", "/connectors", Some(&json!({ "name": name, "config": settings }))).await?;
        self.wait_for(name, "RUNNING").await
    }

    /// Pauses a connector. Its task publishes nothing more, but the connector keeps reading until its queue is full.
    pub async fn pause(&self, name: &str) -> anyhow::Result<()> {
        request(self.rest, "PUT", &format!("/connectors/{name}/pause"), None).await?;
        self.wait_for(name, "PAUSED").await
    }

    /// Resumes a connector without waiting for its task, because the measurement starts now.
    pub async fn resume(&self, name: &str) -> anyhow::Result<()> {
        request(self.rest, "PUT", &format!("/connectors/{name}/resume"), None).await?;
        Ok(())
    }

    pub async fn remove(&self, name: &str) -> anyhow::Result<()> {
        request(self.rest, "DELETE", &format!("/connectors/{name}"), None).await?;
        Ok(())
    }

    /// Kills the process and waits for its end.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.process.kill().await.context("cannot kill Kafka Connect")
    }

    async fn wait_until_it_answers(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        while request(self.rest, "GET", "/connectors", None).await.is_err() {
            self.check()?;
            if begun.elapsed() > STARTS_WITHIN {
                let log = self.log.display();
                bail!("Kafka Connect does not answer after {STARTS_WITHIN:?}; its log is {log}");
            }
            sleep(ASK_AGAIN).await;
        }
        Ok(())
    }

    /// Waits until the connector's task is in this state. If the task fails, the error quotes its trace.
    async fn wait_for(&self, name: &str, state: &str) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let status = request(self.rest, "GET", &format!("/connectors/{name}/status"), None).await?;
            match status["tasks"][0]["state"].as_str() {
                Some(now) if now == state => return Ok(()),
                Some("FAILED") => bail!("Debezium failed: {}", status["tasks"][0]["trace"]),
                _ if begun.elapsed() > CHANGES_WITHIN => {
                    bail!("Debezium is not {state} after {CHANGES_WITHIN:?}: {status}")
                }
                _ => sleep(ASK_AGAIN).await,
            }
        }
    }
}

fn java() -> String {
    std::env::var("JAVA_HOME").map_or_else(|_| "java".to_owned(), |home| home + "/bin/java")
}

/// A loopback port that was free a moment ago.
fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn worker_properties(folder: &Path, bootstrap: &str, rest: SocketAddr) -> String {
    let folder = folder.display();
    // Plain strings, so that the payload is published exactly as it is in the table.
    let converter = "org.apache.kafka.connect.storage.StringConverter";
    format!(
        "bootstrap.servers={bootstrap}\n\
         key.converter={converter}\n\
         value.converter={converter}\n\
         header.converter={converter}\n\
         offset.storage.file.filename={folder}/offsets\n\
         listeners=HTTP://{rest}\n\
         plugin.path={folder}/plugins\n\
         plugin.discovery=service_load\n\
         connector.client.config.override.policy=All\n"
    )
}
