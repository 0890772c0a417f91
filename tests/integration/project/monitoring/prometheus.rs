//! A real Prometheus that scrapes a relay: the server from Debian's package.

use super::script;
use crate::support::postgres_server::free_port;
use crate::support::wait::{STALLED, wait_until};
use serde_json::Value;
use std::fs::File;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Dropping it stops the server.
pub struct Prometheus {
    process: Child,
    address: String,
    folder: TempDir,
}

impl Prometheus {
    /// Scrapes these addresses five times per second, as the job `outbox-relay`.
    pub async fn start(relays: &[String]) -> Prometheus {
        let program = script(&["prometheus"]);
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}\nscrape_configs:\n- job_name: outbox-relay\n  \
             static_configs: [{{targets: {relays:?}}}]\n"
        );
        std::fs::write(&config, text).unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let process = Command::new(program.trim())
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let prometheus = Prometheus { process, address, folder };
        wait_until("Prometheus answers", STALLED, async || prometheus.try_query("1").await.is_ok()).await;
        prometheus
    }

    /// The current values of the series of this query. Fails the test if Prometheus rejects the query.
    pub async fn query(&self, query: &str) -> Vec<f64> {
        let answer = self.try_query(query).await.unwrap();
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        let result = answer["data"]["result"].as_array().unwrap();
        let value = |series: &Value| series["value"][1].as_str().unwrap().parse().unwrap();
        result.iter().map(value).collect()
    }

    /// The series of this query at intervals of two seconds between two times, in seconds since 1970.
    pub async fn series(&self, query: &str, start: f64, end: f64) -> Vec<Value> {
        let rest = format!("query_range?query={}&start={start}&end={end}&step=2", form(query));
        let answer = self.get(&rest).await.unwrap();
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().unwrap().clone()
    }

    async fn try_query(&self, query: &str) -> std::io::Result<Value> {
        self.get(&format!("query?query={}", form(query))).await
    }

    async fn get(&self, rest: &str) -> std::io::Result<Value> {
        let request = format!("GET /api/v1/{rest} HTTP/1.0\r\nHost: prometheus\r\n\r\n");
        let mut stream = TcpStream::connect(&self.address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (_, body) = answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
        serde_json::from_str(body).map_err(std::io::Error::other)
    }
}

fn form(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            eprintln!("--- log of Prometheus\n{log}");
        }
    }
}
