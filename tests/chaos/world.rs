//! The world of a run: a PostgreSQL and a Kafka of its own, three relays, and a way from each of them to either.

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
/// How long a relay that froze or vanished keeps its lanes. Shorter than the default, so that a minute has many faults.
pub const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(3);
/// Longer than a broker of this size takes to recover.
const PUBLISH_TIMEOUT: &str = "10s";
pub const WORKERS: usize = 2;
pub const BATCH_SIZE: usize = 500;
/// No event is as large, but for poison.
pub const LIMIT: &str = "100000";

/// What the faults happen to. Each part is locked while one does.
pub struct World {
    pub postgres: Arc<Mutex<PostgresServer>>,
    pub kafka: Mutex<KafkaServer>,
    pub relays: Vec<Mutex<Replica>>,
    /// Of the database, past the proxies.
    pub url: String,
    /// Of Kafka, past the proxies.
    pub cluster: Cluster,
}

/// One of the relays, which is the same one after it was killed and started again.
pub struct Replica {
    config: Relay,
    pub process: Option<RelayProcess>,
    pub to_postgres: PostgresProxy,
    pub to_kafka: KafkaProxy,
    log: PathBuf,
}

impl Replica {
    /// Starts it, and waits for nothing: what it needs may be away.
    pub fn start(&mut self) {
        assert!(self.process.is_none(), "the relay runs");
        self.process = Some(self.config.clone().spawn(&["run"]));
    }

    /// Its application_name, as long as it runs.
    pub fn name(&self) -> &str {
        &self.running().name
    }

    pub fn running(&self) -> &RelayProcess {
        self.process.as_ref().expect("a relay that runs")
    }

    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("a relay that runs");
        process.kill();
        self.keep_log(&process);
    }

    /// Adds its log to the one of this replica.
    fn keep_log(&self, process: &RelayProcess) {
        let mut log = File::options().create(true).append(true).open(&self.log).unwrap();
        write!(log, "=== {}\n{}", process.name, process.log()).unwrap();
    }

    /// Asks it to end; whether it did so as it should.
    async fn stop(&mut self) -> bool {
        let Some(mut process) = self.process.take() else { return false };
        let status = process.stop().await;
        self.keep_log(&process);
        status.success()
    }

    /// Whether it ended by itself, which it never should.
    pub fn has_ended(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| !process.is_running())
    }
}

impl World {
    /// The relays write their logs into this folder when they end.
    pub async fn create(folder: &Path) -> Self {
        // What was committed must survive a crash: the promise is worth no more than that.
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
            to_kafka.let_through().await;
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

    /// By the relay's own command, past the proxies.
    async fn migrate(&self) {
        let relay = self.relays[0].lock().await.config.clone().set("postgres", "url", self.url.clone());
        let mut migration = relay.spawn(&["migrate"]);
        let status = migration.ended().await;
        assert!(status.success(), "{}", migration.log());
    }

    /// They connect as what `migrate --print-roles` makes, and can do no more than they must.
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

    /// The numbers of the relays that did not end as they should when they were asked to.
    pub async fn stop_relays(&self) -> Vec<usize> {
        let mut failed = Vec::new();
        for (index, relay) in self.relays.iter().enumerate() {
            if !relay.lock().await.stop().await {
                failed.push(index + 1);
            }
        }
        failed
    }

    /// The numbers of the relays that ended by themselves.
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

    /// A connection past the proxies, to a server that runs.
    pub async fn connect(&self) -> Client {
        application::connect(&self.url).await.unwrap_or_else(|error| panic!("{}: {error:?}", self.url))
    }
}

/// Of a topic. The broker's own times tell after which fault a record was appended.
pub fn settings(limit: &str) -> [(&str, &str); 2] {
    [("max.message.bytes", limit), ("message.timestamp.type", "LogAppendTime")]
}
