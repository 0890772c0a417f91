//! Debezium, the best alternative that we know, tuned as well as we can: a standalone Kafka Connect worker with the
//! PostgreSQL connector and the outbox event router.

use crate::BenchError;
use crate::place::Route;
use crate::relay::{self, Subject};
use crate::usage::Party;
use anyhow::{Context, bail, ensure};
use deadpool_postgres::Object;
use serde_json::{Value, json};
use std::fmt;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};
use tokio_postgres::config::Host;

/// A connector with its slot and its publication. Call `detach` at the end, otherwise the server keeps WAL for the
/// slot.
pub struct Debezium<'a> {
    connect: &'a mut Connect,
    client: Object,
    name: String,
}

impl<'a> Debezium<'a> {
    /// Starts to follow the outbox of the place and to publish to the topics of the route.
    pub async fn attach(
        connect: &'a mut Connect,
        postgres: &str,
        route: &Route<'_>,
        tuning: Tuning,
    ) -> anyhow::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("debezium_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let client = route.place.database.get().await?;
        let source = Source { postgres, schema: route.place.schema(), topic: &route.template.to_string() };
        client.batch_execute(&create_publication(&name, &source, tuning)).await?;
        let connector = json!({ "name": name, "config": settings(&name, &source, tuning)? });
        connect.request("POST /connectors", Some(&connector)).await?;
        connect.wait_for(&name, "RUNNING").await?;
        let debezium = Self { connect, client, name };
        debezium.wait_until_slot_is("active").await?;
        Ok(debezium)
    }

    /// Stops publishing, so that a backlog can build up. The connector keeps reading until its queue is full.
    pub async fn pause(&self) -> anyhow::Result<()> {
        self.connect.request(&format!("PUT /connectors/{}/pause", self.name), None).await?;
        self.connect.wait_for(&self.name, "PAUSED").await
    }

    /// Continues to publish. Does not wait for the connector's task, because the measurement starts now.
    pub async fn resume(&self) -> anyhow::Result<()> {
        self.connect.request(&format!("PUT /connectors/{}/resume", self.name), None).await.map(|_| ())
    }

    /// Removes the connector, the slot and the publication.
    pub async fn detach(self) -> anyhow::Result<()> {
        self.connect.request(&format!("DELETE /connectors/{}", self.name), None).await?;
        self.wait_until_slot_is("not active").await?;
        self.client
            .batch_execute(&format!(
                "SELECT pg_drop_replication_slot('{name}'); DROP PUBLICATION {name}",
                name = self.name
            ))
            .await
            .context("cannot drop Debezium's slot")
    }

    async fn wait_until_slot_is(&self, state: &str) -> anyhow::Result<()> {
        let query =
            format!("SELECT 1 FROM pg_replication_slots WHERE {state} AND slot_name = '{}'", self.name);
        let begun = Instant::now();
        while self.client.query_opt(&query, &[]).await?.is_none() {
            if begun.elapsed() > CHANGES_WITHIN {
                bail!("Debezium's slot is not {state} after {CHANGES_WITHIN:?}");
            }
            sleep(ASK_AGAIN).await;
        }
        Ok(())
    }
}

impl Subject for Debezium<'_> {
    const EVENT_ID: &'static str = "id";

    fn party(&self) -> Party {
        Party::started("Debezium", self.connect.pid)
    }

    fn check(&mut self) -> Result<(), BenchError> {
        self.connect.check().map_err(|error| BenchError::Subject(error.to_string()))
    }

    /// Always settled: Debezium stores its position in the log from time to time, and no row waits for that.
    async fn has_settled(&mut self, _rows: u64) -> Result<bool, BenchError> {
        Ok(true)
    }
}

const STARTS_WITHIN: Duration = Duration::from_secs(120);
const CHANGES_WITHIN: Duration = Duration::from_secs(120);
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// Connect answers after it has carried out a change, and starting a connector can take this long.
const ANSWERS_WITHIN: Duration = Duration::from_secs(90);

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

    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.process.try_wait()? {
            Some(ended) => bail!("Kafka Connect ended ({ended}); its log is {}", self.log.display()),
            None => Ok(()),
        }
    }

    /// Kills the process and waits for its end.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.process.kill().await.context("cannot kill Kafka Connect")
    }

    /// Sends a request to Kafka Connect's REST interface and returns the body of the answer, or `Null` if it is empty. If
    /// the status is not a success, the error quotes the answer.
    async fn request(&self, line: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let answer = relay::request(&self.rest.to_string(), line, &body, ANSWERS_WITHIN).await;
        let (status, text) = answer.with_context(|| line.to_owned())?;
        ensure!((200..300).contains(&status), "{line}: {status} {text}");
        if text.is_empty() { Ok(Value::Null) } else { Ok(serde_json::from_str(&text)?) }
    }

    async fn wait_until_it_answers(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        while self.request("GET /connectors", None).await.is_err() {
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
            let status = self.request(&format!("GET /connectors/{name}/status"), None).await?;
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

/// The columns that become a record. PostgreSQL does not send the others, so Debezium does not decode them.
const COLUMNS: [&str; 6] = ["id", "event_id", "aggregate_type", "aggregate_id", "event_type", "payload"];

/// Where events come from and where they go.
struct Source<'a> {
    postgres: &'a str,
    schema: &'a str,
    /// The relay's topic template.
    topic: &'a str,
}

/// The publication, which has the same name as the connector. It contains only inserts and the needed columns.
fn create_publication(name: &str, source: &Source<'_>, tuning: Tuning) -> String {
    let columns = if tuning.needed_columns { format!(" ({})", COLUMNS.join(", ")) } else { String::new() };
    let schema = source.schema;
    format!("CREATE PUBLICATION {name} FOR TABLE {schema}.outbox{columns} WITH (publish = 'insert')")
}

/// The connector's settings. The slot and the publication have the same name as the connector.
fn settings(name: &str, source: &Source<'_>, tuning: Tuning) -> anyhow::Result<Value> {
    let (host, port, user, database) = parts(source.postgres)?;
    let schema = source.schema;
    let columns = if tuning.needed_columns { COLUMNS.join("|") } else { ".*".to_owned() };
    Ok(json!({
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": host,
        "database.port": port.to_string(),
        "database.user": user,
        "database.password": "",
        "database.dbname": database,
        "topic.prefix": name,
        "plugin.name": "pgoutput",
        "slot.name": name,
        "publication.name": name,
        "publication.autocreate.mode": "disabled",
        "table.include.list": format!("{schema}.outbox"),
        "column.include.list": format!("{schema}.outbox.({columns})"),
        "snapshot.mode": "no_data",
        "tombstones.on.delete": "false",

        "max.batch.size": tuning.batch_rows.to_string(),
        "max.queue.size": (tuning.batch_rows * 4).to_string(),
        "poll.interval.ms": "5",
        "statistics.metrics.enabled": "false",
        "extended.headers.enabled": "false",

        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.table.field.event.id": "event_id",
        "transforms.outbox.table.field.event.key": "aggregate_id",
        "transforms.outbox.table.field.event.payload": "payload",
        "transforms.outbox.table.fields.additional.placement": "event_type:header:event_type",
        "transforms.outbox.route.by.field": "aggregate_type",
        "transforms.outbox.route.topic.replacement": source.topic.replace("{aggregate_type}", "${routedByValue}"),

        "producer.override.acks": "all",
        "producer.override.enable.idempotence": "true",
        "producer.override.compression.type": "lz4",
        "producer.override.batch.size": "262144",
        "producer.override.linger.ms": tuning.linger_ms.to_string(),
        "producer.override.buffer.memory": "67108864",
    }))
}

fn parts(url: &str) -> anyhow::Result<(String, u16, String, String)> {
    let config: tokio_postgres::Config = url.parse()?;
    let [Host::Tcp(host)] = config.get_hosts() else {
        bail!("Debezium needs one host in the database's URL")
    };
    let port = config.get_ports().first().copied().unwrap_or(5_432);
    let user = config.get_user().context("Debezium needs a user in the database's URL")?;
    let database = config.get_dbname().unwrap_or(user);
    Ok((host.clone(), port, user.to_owned(), database.to_owned()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// `max.batch.size`. The queue holds four batches.
    pub batch_rows: u32,
    /// `linger.ms` of the producer.
    pub linger_ms: u32,
    /// Whether PostgreSQL sends, and Debezium decodes, only the columns that become a record.
    pub needed_columns: bool,
    /// The size of the heap, which is allocated at the start.
    pub heap: &'static str,
    pub collector: &'static str,
}

impl Tuning {
    /// The settings that the relay is compared with, except for the batch size, which the drain benchmark tries itself.
    /// The parallel collector suits a machine with few cores and a benchmark of throughput.
    pub const DEFAULT: Self =
        Self { batch_rows: 8_192, linger_ms: 5, needed_columns: true, heap: "1g", collector: "Parallel" };

    pub fn flags(&self) -> [String; 3] {
        let Self { heap, collector, .. } = self;
        [format!("-Xms{heap}"), format!("-Xmx{heap}"), format!("-XX:+Use{collector}GC")]
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batch_rows, linger_ms, needed_columns, heap, collector } = self;
        let columns = if *needed_columns { "needed columns" } else { "all columns" };
        write!(
            to,
            "max.batch.size={batch_rows} linger.ms={linger_ms}, {columns}, {collector} GC, heap {heap}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Source<'_> = Source {
        postgres: "postgres://postgres@127.0.0.1:25432/app",
        schema: "scratch",
        topic: "bench.1.{aggregate_type}",
    };

    #[test]
    fn the_settings_name_the_database_the_table_and_the_topics() {
        let settings = settings("d1", &SOURCE, Tuning { batch_rows: 4_096, ..Tuning::DEFAULT }).unwrap();
        let text = |key: &str| settings[key].as_str().unwrap().to_owned();
        assert_eq!(text("database.hostname"), "127.0.0.1");
        assert_eq!(text("database.port"), "25432");
        assert_eq!(text("database.dbname"), "app");
        assert_eq!(text("table.include.list"), "scratch.outbox");
        assert_eq!(text("transforms.outbox.route.topic.replacement"), "bench.1.${routedByValue}");
        assert_eq!((text("max.batch.size"), text("max.queue.size")), ("4096".into(), "16384".into()));
    }

    #[test]
    fn the_publication_has_the_columns_that_are_published() {
        assert_eq!(
            create_publication("d1", &SOURCE, Tuning::DEFAULT),
            "CREATE PUBLICATION d1 FOR TABLE scratch.outbox \
             (id, event_id, aggregate_type, aggregate_id, event_type, payload) WITH (publish = 'insert')"
        );
    }
}
