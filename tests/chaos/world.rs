//! The world of a run: its own PostgreSQL and Kafka, three relays, and a proxy between each relay and each server.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio_postgres::Client;

use crate::application::{self, KINDS, topic};
use crate::support::kafka_proxy::Proxy as KafkaProxy;
use crate::support::kafka_server::KafkaServer;
use crate::support::postgres_proxy::PostgresProxy;
use crate::support::postgres_server::PostgresServer;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::roles::{Roles, url_of};
use crate::support::topics::Cluster;

pub const RELAYS: usize = 3;
/// How long a relay that froze or vanished keeps its lanes. Shorter than the default, so that many faults fit into a
/// minute.
pub const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(3);
/// Longer than a broker of this size takes to recover.
const PUBLISH_TIMEOUT: &str = "10s";
pub const WORKERS: usize = 2;
pub const BATCH_SIZE: usize = 500;
/// Every event is smaller, except poison.
pub const LIMIT: &str = "100000";

/// The targets of faults. Each part is locked while a fault affects it.
pub struct World {
    pub postgres: Arc<Mutex<PostgresServer>>,
    pub kafka: Mutex<KafkaServer>,
    pub relays: Vec<Mutex<Replica>>,
    /// The URL of the database, without a proxy.
    pub url: String,
    /// The address of Kafka, without a proxy.
    pub cluster: Cluster,
}

/// One of the relays. It stays the same replica after it is killed and started again.
pub struct Replica {
    config: Relay,
    pub process: Option<RelayProcess>,
    pub to_postgres: PostgresProxy,
    pub to_kafka: KafkaProxy,
    log: PathBuf,
}

impl Replica {
    /// Starts it without waiting, because servers that it needs may be unavailable.
    pub fn start(&mut self) {
        assert!(self.process.is_none(), "the relay is running");
        self.process = Some(self.config.clone().spawn(&["run"]));
    }

    /// Its application_name while it runs.
    pub fn name(&self) -> &str {
        &self.running().name
    }

    pub fn running(&self) -> &RelayProcess {
        self.process.as_ref().expect("a running relay")
    }

    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("a running relay");
        process.kill();
        self.keep_log(&process);
    }

    /// Adds its log to the log of this replica.
    fn keep_log(&self, process: &RelayProcess) {
        let mut log = File::options().create(true).append(true).open(&self.log).unwrap();
        write!(log, "=== {}\n{}", process.name, process.log()).unwrap();
    }

    /// Sends SIGTERM, and returns whether the relay ended correctly.
    async fn stop(&mut self) -> bool {
        let Some(mut process) = self.process.take() else { return false };
        let status = process.stop().await;
        self.keep_log(&process);
        status.success()
    }

    /// Whether it ended unexpectedly.
    pub fn has_ended(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| !process.is_running())
    }
}

impl World {
    /// When the relays end, they write their logs to this folder.
    pub async fn create(folder: &Path) -> Self {
        // Commits must survive a crash, because the guarantee covers only durable commits.
        let postgres = PostgresServer::start(&[("fsync", "on"), ("max_connections", "100")]).await;
        let kafka = KafkaServer::start().await;
        let (url, cluster) = (postgres.url(), kafka.cluster());
        for kind in &KINDS {
            cluster.create(&topic(kind.name), kind.partitions, &settings(LIMIT)).await;
        }
        let mut relays = Vec::new();
        for number in 1..=RELAYS {
            let to_postgres = PostgresProxy::to(&postgres.address()).await;
            let mut to_kafka = KafkaProxy::before(&cluster.bootstrap);
            to_kafka.resume().await;
            let config = Relay::new()
                .set("postgres", "url", to_postgres.url(&url))
                .set("kafka", "bootstrap_servers", to_kafka.address())
                .set("relay", "takeover_timeout", format!("{}ms", TAKEOVER_TIMEOUT.as_millis()))
                .set("relay", "publish_timeout", PUBLISH_TIMEOUT)
                .set("relay", "workers", WORKERS as i64)
                .set("relay", "batch_size", BATCH_SIZE as i64)
                .set("admin", "listen", "off")
                .set("log", "level", "info,outbox_relay=debug")
                .set("log", "format", "text");
            let log = folder.join(format!("relay-{number}.log"));
            relays.push(Mutex::new(Replica { config, process: None, to_postgres, to_kafka, log }));
        }
        let world =
            Self { postgres: Arc::new(Mutex::new(postgres)), kafka: Mutex::new(kafka), relays, url, cluster };
        world.migrate().await;
        world.give_relays_a_role().await;
        application::create(&world.connect().await).await;
        world
    }

    /// Runs the relay's own command, without a proxy.
    async fn migrate(&self) {
        let relay = self.relays[0].lock().await.config.clone().set("postgres", "url", self.url.clone());
        let mut migration = relay.spawn(&["migrate"]);
        let status = migration.ended().await;
        assert!(status.success(), "{}", migration.log());
    }

    /// The relays connect with the roles that `migrate --print-roles` creates, and have no other privileges.
    async fn give_relays_a_role(&self) {
        let roles = Roles::create(&self.connect().await, &"public.outbox".parse().unwrap()).await;
        let url = url_of(roles.relay(), &self.url);
        for relay in &self.relays {
            let mut relay = relay.lock().await;
            relay.config = relay.config.clone().set("postgres", "url", relay.to_postgres.url(&url));
        }
    }

    pub async fn start_relays(&self) {
        for relay in &self.relays {
            relay.lock().await.start();
        }
    }

    /// The numbers of the relays that did not end correctly after SIGTERM.
    pub async fn stop_relays(&self) -> Vec<usize> {
        let mut failed = Vec::new();
        for (index, relay) in self.relays.iter().enumerate() {
            if !relay.lock().await.stop().await {
                failed.push(index + 1);
            }
        }
        failed
    }

    /// The numbers of the relays that ended unexpectedly.
    pub async fn ended_relays(&self) -> Vec<usize> {
        let mut ended = Vec::new();
        for (index, relay) in self.relays.iter().enumerate() {
            if relay.lock().await.has_ended() {
                ended.push(index + 1);
            }
        }
        ended
    }

    /// Their application_names.
    pub async fn relay_names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for relay in &self.relays {
            names.push(relay.lock().await.name().to_owned());
        }
        names
    }

    /// A connection without a proxy, to a running server.
    pub async fn connect(&self) -> Client {
        application::connect(&self.url).await.unwrap_or_else(|error| panic!("{}: {error:?}", self.url))
    }
}

/// The settings of a topic. Broker timestamps show after which fault a record was appended.
pub fn settings(limit: &str) -> [(&str, &str); 2] {
    [("max.message.bytes", limit), ("message.timestamp.type", "LogAppendTime")]
}
