//! A Kafka of a test's own, which it may kill, freeze and stop: one node, or a few that replicate.
//!
//! Every broker is a child of the test's process. It ends with the value, with the thread that started it, and with the
//! process.

use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Write;
use std::fs::{File, TryLockError};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpSocket;

use rdkafka::consumer::{BaseConsumer, Consumer};

use super::topics::Cluster;
use super::wait::wait_until;

/// At most so many brokers at once, over all tests: each takes about 350 MB.
const BROKERS: usize = 4;
/// A busy machine starts several at once.
const STARTS_WITHIN: Duration = Duration::from_secs(120);
/// How often a broker that waits for its turn asks for it.
const LOCK_EVERY: Duration = Duration::from_millis(50);
const ENDS_WITHIN: Duration = Duration::from_secs(60);
const CLUSTER_ID: &str = "outbox-relay-tests-00w";
/// The user that may do everything, where users are told apart.
const ADMIN: &str = "admin";
const LOG_LINES_SHOWN: usize = 20;

/// A Kafka to be started.
#[derive(Default)]
pub struct Settings {
    /// How many brokers; the first one is the controller, too.
    pub brokers: usize,
    /// Lines of `server.properties`, over ours.
    pub properties: Vec<(&'static str, &'static str)>,
    /// Users that log in by name, with the name as the password, and may do what ACLs allow. Without any, everybody may
    /// do everything.
    pub users: Vec<&'static str>,
    /// More listeners of the first broker, by name and protocol, such as ("TLS", "SSL").
    pub listeners: Vec<(&'static str, &'static str)>,
    /// More lines of `server.properties`, behind all others.
    pub lines: String,
    /// More arguments for the formatting of the storage, such as users of SCRAM.
    pub format: Vec<String>,
    /// System properties of the brokers' machines, such as `-Dname=value`.
    pub system_properties: Vec<String>,
}

/// One Kafka cluster, its data and its processes. Dropping it kills them.
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

    /// Waits for its turn if too many run already, and until all brokers answer.
    pub async fn start_with(settings: Settings) -> Self {
        let count = settings.brokers.max(1);
        let permit = Permit::acquire(count).await;
        let folder = tempfile::Builder::new().prefix("outbox-relay-kafka.").tempdir().unwrap();
        let controller = Port::reserve();
        let mut brokers = Vec::new();
        for number in 1..=count {
            let port = Port::reserve();
            let named = if number == 1 { settings.listeners.as_slice() } else { &[] };
            let listeners: Vec<_> = named.iter().map(|(name, _)| (*name, Port::reserve())).collect();
            let place = folder.path().join(format!("broker-{number}"));
            std::fs::create_dir(&place).unwrap();
            let text = properties(&settings, number, port.address, controller.address, &listeners, &place);
            std::fs::write(place.join("server.properties"), text).unwrap();
            let system_properties = settings.system_properties.clone();
            let broker = Broker {
                number,
                port,
                listeners,
                system_properties,
                place,
                process: None,
                _controller: None,
            };
            broker.format(&settings.format);
            brokers.push(broker);
        }
        brokers[0]._controller = Some(controller);
        let mut server =
            Self { brokers, users: !settings.users.is_empty(), _folder: folder, _permit: permit };
        server.restart().await;
        server
    }

    /// The way to it, as the user who may do everything.
    pub fn cluster(&self) -> Cluster {
        if self.users { self.cluster_as(ADMIN) } else { self.described(Vec::new()) }
    }

    /// The way to it, as one of the users of the settings.
    pub fn cluster_as(&self, user: &str) -> Cluster {
        let properties = [
            ("security.protocol", "SASL_PLAINTEXT"),
            ("sasl.mechanism", "PLAIN"),
            ("sasl.username", user),
            ("sasl.password", user),
        ];
        self.described(properties.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec())
    }

    fn described(&self, properties: Vec<(String, String)>) -> Cluster {
        let addresses: Vec<String> = self.brokers.iter().map(Broker::address).collect();
        Cluster { bootstrap: addresses.join(","), properties, replicas: self.brokers.len() as i32 }
    }

    /// Where clients find one of the listeners of the settings. Its host is a name that a certificate can have.
    pub fn listener(&self, name: &str) -> String {
        let found = self.brokers[0].listeners.iter().find(|(known, _)| *known == name);
        format!("localhost:{}", found.unwrap().1.address.port())
    }

    /// SIGKILL to every broker; returns when they are dead.
    pub fn kill(&mut self) {
        self.brokers.iter_mut().for_each(Broker::kill);
    }

    /// SIGTERM to every broker; returns when they have ended.
    pub async fn stop(&mut self) {
        // The controller last: the others ask it for leave.
        for broker in self.brokers.iter_mut().rev() {
            broker.stop().await;
        }
    }

    /// SIGSTOP to every broker: connections stay, and nothing answers.
    pub fn freeze(&self) {
        self.brokers.iter().for_each(Broker::freeze);
    }

    /// SIGCONT to every broker.
    pub fn thaw(&self) {
        self.brokers.iter().for_each(Broker::thaw);
    }

    /// Starts those that do not run, with their ports and data of before, and waits until all answer.
    pub async fn restart(&mut self) {
        for broker in &mut self.brokers {
            broker.launch();
        }
        let expected = self.brokers.len();
        let cluster = self.cluster();
        let brokers = &mut self.brokers;
        wait_until(&format!("{expected} brokers answer"), STARTS_WITHIN, async || {
            brokers.iter_mut().for_each(Broker::assert_running);
            known_brokers(cluster.clone()).await == expected
        })
        .await;
    }

    /// Runs one of Kafka's own command-line tools as the user who may do everything, for what a client library cannot
    /// ask for. Returns what it prints.
    pub async fn run_tool(&self, class: &'static str, arguments: &[&str]) -> String {
        let mut command = java("128m");
        command.arg(class).args(["--bootstrap-server", &self.cluster().bootstrap]);
        if self.users {
            let file = self.brokers[0].place.join("admin.properties");
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

/// One node.
pub struct Broker {
    number: usize,
    port: Port,
    listeners: Vec<(&'static str, Port)>,
    system_properties: Vec<String>,
    place: PathBuf,
    process: Option<Child>,
    _controller: Option<Port>,
}

impl Broker {
    /// Where clients find it.
    pub fn address(&self) -> String {
        self.port.address.to_string()
    }

    /// SIGKILL; returns when it is dead.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// SIGTERM; returns when it has ended.
    pub async fn stop(&mut self) {
        self.signal(Signal::TERM);
        let Some(mut process) = self.process.take() else { return };
        let what = format!("broker {} has ended", self.number);
        wait_until(&what, ENDS_WITHIN, async || process.try_wait().unwrap().is_some()).await;
    }

    /// SIGSTOP: connections stay, and nothing answers.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Starts it, if it does not run, and waits for nothing.
    pub fn launch(&mut self) {
        if self.process.is_some() {
            return;
        }
        let log = File::options().create(true).append(true).open(self.place.join("log")).unwrap();
        let mut command = java("320m");
        command
            .args([
                "-Dorg.slf4j.simpleLogger.showDateTime=true",
                "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            ])
            .args(&self.system_properties)
            .arg("kafka.Kafka")
            .arg(self.place.join("server.properties"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.process = Some(command.spawn().unwrap());
    }

    fn format(&self, arguments: &[String]) {
        let kind = if self.number == 1 { "--standalone" } else { "--no-initial-controllers" };
        let output = java("128m")
            .args(["kafka.tools.StorageTool", "format", kind, "-t", CLUSTER_ID, "-c"])
            .arg(self.place.join("server.properties"))
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

    fn assert_running(&mut self) {
        let Some(process) = &mut self.process else { return };
        if let Some(status) = process.try_wait().unwrap() {
            panic!("broker {} ended ({status}):\n{}", self.number, self.last_log_lines());
        }
    }

    fn last_log_lines(&self) -> String {
        let log = std::fs::read_to_string(self.place.join("log")).unwrap_or_default();
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

/// The right to run some brokers: locks on files, since test binaries run next to each other.
struct Permit {
    _locks: Vec<File>,
}

impl Permit {
    /// Waits for its turn.
    async fn acquire(brokers: usize) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("brokers");
        std::fs::create_dir_all(&folder).unwrap();
        // Two that each have a part of what they need would wait for each other, so only one collects locks at a time.
        let _turn = loop {
            match lock(&folder.join("turn")) {
                Some(turn) => break turn,
                None => tokio::time::sleep(LOCK_EVERY).await,
            }
        };
        let mut free: Vec<PathBuf> = (1..=BROKERS).map(|number| folder.join(number.to_string())).collect();
        let mut locks = Vec::new();
        loop {
            free.retain(|file| {
                let locked = if locks.len() < brokers { lock(file) } else { None };
                let taken = locked.is_some();
                locks.extend(locked);
                !taken
            });
            if locks.len() == brokers {
                return Self { _locks: locks };
            }
            tokio::time::sleep(LOCK_EVERY).await;
        }
    }
}

/// The lock of a file, unless somebody has it. It lasts as long as the value.
fn lock(path: &Path) -> Option<File> {
    let file = File::options().create(true).append(true).open(path).unwrap();
    match file.try_lock() {
        Ok(()) => Some(file),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Error(error)) => panic!("{}: {error}", path.display()),
    }
}

/// A port that stays ours while nobody listens on it: a server started again finds it free.
struct Port {
    address: SocketAddr,
    _bound: TcpSocket,
}

impl Port {
    fn reserve() -> Self {
        let bound = TcpSocket::new_v4().unwrap();
        bound.set_reuseaddr(true).unwrap();
        bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Self { address: bound.local_addr().unwrap(), _bound: bound }
    }
}

/// A JVM that is quick to start, small, and gone when the thread that started it is.
fn java(heap: &str) -> Command {
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
    // Without the archive a start takes twice as long.
    if let Ok(classes) = std::env::var("OUTBOX_RELAY_TEST_KAFKA_CLASSES") {
        command.arg(format!("-XX:SharedArchiveFile={classes}"));
    }
    command.args(["-cp", &format!("{lib}/*")]);
    command
}

/// How many brokers the cluster says it has; 0 if nobody answers.
async fn known_brokers(cluster: Cluster) -> usize {
    let ask = move || {
        let client: BaseConsumer = cluster.client().set("log_level", "0").create().unwrap();
        client.fetch_metadata(None, Duration::from_secs(2)).map_or(0, |metadata| metadata.brokers().len())
    };
    tokio::task::spawn_blocking(ask).await.unwrap()
}

/// Who logs in, and whom a broker lets in.
fn login(user: &str, users: &[&str]) -> String {
    let mut text = format!(
        "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"{user}\" password=\"{user}\""
    );
    for user in users {
        write!(text, " user_{user}=\"{user}\"").unwrap();
    }
    text + ";"
}

fn properties(
    settings: &Settings,
    number: usize,
    broker: SocketAddr,
    controller: SocketAddr,
    more: &[(&'static str, Port)],
    place: &Path,
) -> String {
    let (roles, mut listeners) = if number == 1 {
        ("broker,controller", format!("CLIENT://{broker},CONTROLLER://{controller}"))
    } else {
        ("broker", format!("CLIENT://{broker}"))
    };
    let mut advertised = listeners.clone();
    let mut protocols = String::new();
    for (name, port) in more {
        write!(listeners, ",{name}://{}", port.address).unwrap();
        write!(advertised, ",{name}://localhost:{}", port.address.port()).unwrap();
        let (_, protocol) = settings.listeners.iter().find(|(known, _)| known == name).unwrap();
        write!(protocols, ",{name}:{protocol}").unwrap();
    }
    let protocol = if settings.users.is_empty() { "PLAINTEXT" } else { "SASL_PLAINTEXT" };
    let replicas = settings.brokers.max(1);
    let mut text = format!(
        "process.roles={roles}
node.id={number}
controller.quorum.bootstrap.servers={controller}
controller.listener.names=CONTROLLER
listeners={listeners}
advertised.listeners={advertised}
listener.security.protocol.map=CLIENT:{protocol},CONTROLLER:PLAINTEXT{protocols}
inter.broker.listener.name=CLIENT
log.dirs={}
auto.create.topics.enable=false
broker.session.timeout.ms=5000
broker.heartbeat.interval.ms=500
offsets.topic.num.partitions=1
offsets.topic.replication.factor={replicas}
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=8388608
",
        place.join("data").display()
    );
    if !settings.users.is_empty() {
        let users = [&[ADMIN], settings.users.as_slice()].concat();
        write!(
            text,
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
# The controller's listener has no users.
super.users=User:{ADMIN};User:ANONYMOUS
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.client.plain.sasl.jaas.config={}
",
            login(ADMIN, &users)
        )
        .unwrap();
    }
    for (name, value) in &settings.properties {
        writeln!(text, "{name}={value}").unwrap();
    }
    text + &settings.lines
}
