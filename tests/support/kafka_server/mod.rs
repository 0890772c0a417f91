//! A private Kafka cluster for one test, which the test can kill, freeze and stop. It has one or several brokers.
//!
//! Every broker is a child process of the test. It ends when its value is dropped, when the thread that started it ends,
//! and when the test's process ends.

mod broker;
mod permit;
mod properties;

use rdkafka::consumer::{BaseConsumer, Consumer};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;

use self::broker::{Port, java};
use self::permit::Permit;
use self::properties::{login, properties};
use super::topics::Cluster;
use super::wait::wait_until;

pub use self::broker::Broker;

/// Generous, because several clusters may start at once on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// The superuser of a cluster with users.
const ADMIN: &str = "admin";

/// The settings of a cluster.
#[derive(Default)]
pub struct Settings {
    /// The number of brokers. The first one is also the controller.
    pub brokers: usize,
    /// Properties of `server.properties` that override the defaults.
    pub properties: Vec<(&'static str, &'static str)>,
    /// Users, whose passwords equal their names. They may do what ACLs allow. If there are no users, every client may do
    /// everything.
    pub users: Vec<&'static str>,
    /// Additional listeners of the first broker, by name and protocol, such as ("TLS", "SSL").
    pub listeners: Vec<(&'static str, &'static str)>,
    /// Additional lines of `server.properties`, after all others.
    pub lines: String,
    /// Additional arguments for formatting the storage, such as SCRAM users.
    pub format: Vec<String>,
    /// System properties of the brokers' JVMs, such as `-Dname=value`.
    pub system_properties: Vec<String>,
    /// A folder with more classes for the brokers, such as a callback handler.
    pub classes: Option<PathBuf>,
}

/// One Kafka cluster: its data and its processes. Dropping it kills the processes.
pub struct KafkaServer {
    pub brokers: Vec<Broker>,
    users: bool,
    _folder: TempDir,
    _permit: Permit,
}

impl KafkaServer {
    /// One broker without users.
    pub async fn start() -> Self {
        Self::start_with(Settings::default()).await
    }

    /// Waits until enough broker slots are free, then until all brokers answer.
    pub async fn start_with(settings: Settings) -> Self {
        let count = settings.brokers.max(1);
        let permit = Permit::acquire(count).await;
        let root = tempfile::Builder::new().prefix("outbox-relay-kafka.").tempdir().unwrap();
        let controller = Port::reserve();
        let mut brokers = Vec::new();
        for number in 1..=count {
            let port = Port::reserve();
            let named = if number == 1 { settings.listeners.as_slice() } else { &[] };
            let listeners: Vec<_> = named.iter().map(|(name, _)| (*name, Port::reserve())).collect();
            let folder = root.path().join(format!("broker-{number}"));
            std::fs::create_dir(&folder).unwrap();
            let text = properties(&settings, number, port.address, controller.address, &listeners, &folder);
            std::fs::write(folder.join("server.properties"), text).unwrap();
            let system_properties = settings.system_properties.clone();
            let broker = Broker {
                number,
                port,
                listeners,
                system_properties,
                classes: settings.classes.clone(),
                folder,
                process: None,
                _controller: None,
            };
            broker.format(&settings.format);
            brokers.push(broker);
        }
        brokers[0]._controller = Some(controller);
        let mut server = Self { brokers, users: !settings.users.is_empty(), _folder: root, _permit: permit };
        server.restart().await;
        server
    }

    /// How to connect to it as the superuser.
    pub fn cluster(&self) -> Cluster {
        if self.users { self.cluster_as(ADMIN) } else { self.cluster_with(Vec::new()) }
    }

    /// How to connect to it as one of the users of the settings.
    pub fn cluster_as(&self, user: &str) -> Cluster {
        let properties = [
            ("security.protocol", "SASL_PLAINTEXT"),
            ("sasl.mechanism", "PLAIN"),
            ("sasl.username", user),
            ("sasl.password", user),
        ];
        self.cluster_with(properties.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec())
    }

    fn cluster_with(&self, properties: Vec<(String, String)>) -> Cluster {
        let addresses: Vec<String> = self.brokers.iter().map(Broker::address).collect();
        Cluster { bootstrap: addresses.join(","), properties, replicas: self.brokers.len() as i32 }
    }

    /// The address of one of the listeners of the settings. Its host is a name that a certificate can contain.
    pub fn listener(&self, name: &str) -> String {
        let found = self.brokers[0].listeners.iter().find(|(known, _)| *known == name);
        format!("localhost:{}", found.unwrap().1.address.port())
    }

    /// Sends SIGKILL to every broker and waits until they are dead.
    pub fn kill(&mut self) {
        self.brokers.iter_mut().for_each(Broker::kill);
    }

    /// Sends SIGTERM to every broker and waits until they have ended.
    pub async fn stop(&mut self) {
        // The controller is stopped last, because the other brokers need it for a controlled shutdown.
        for broker in self.brokers.iter_mut().rev() {
            broker.stop().await;
        }
    }

    /// Sends SIGSTOP to every broker: connections stay open, but no broker answers.
    pub fn freeze(&self) {
        self.brokers.iter().for_each(Broker::freeze);
    }

    /// Sends SIGCONT to every broker.
    pub fn thaw(&self) {
        self.brokers.iter().for_each(Broker::thaw);
    }

    /// Starts the brokers that are not running, with the same ports and data, and waits until all answer.
    pub async fn restart(&mut self) {
        for broker in &mut self.brokers {
            broker.launch();
        }
        let expected = self.brokers.len();
        let cluster = self.cluster();
        let brokers = &mut self.brokers;
        wait_until(&format!("{expected} brokers answer"), START_TIMEOUT, async || {
            brokers.iter_mut().for_each(Broker::assert_running);
            known_brokers(cluster.clone()).await == expected
        })
        .await;
    }

    /// Runs one of Kafka's command-line tools as the superuser, for requests that the client library does not support.
    /// Returns its output.
    pub async fn run_tool(&self, class: &'static str, arguments: &[&str]) -> String {
        let mut command = java("128m");
        command.arg(class).args(["--bootstrap-server", &self.cluster().bootstrap]);
        if self.users {
            let file = self.brokers[0].folder.join("admin.properties");
            let login = format!("sasl.jaas.config={}\n", login(ADMIN, &[]));
            std::fs::write(&file, format!("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n{login}"))
                .unwrap();
            command.arg("--command-config").arg(file);
        }
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        assert!(output.status.success(), "{class}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// The number of brokers in the cluster's metadata; 0 if no broker answers.
async fn known_brokers(cluster: Cluster) -> usize {
    let request = move || {
        let client: BaseConsumer = cluster.client().set("log_level", "0").create().unwrap();
        client.fetch_metadata(None, Duration::from_secs(2)).map_or(0, |metadata| metadata.brokers().len())
    };
    tokio::task::spawn_blocking(request).await.unwrap()
}
