//! The world of a run: its own PostgreSQL and Kafka, and every process of the example.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use outbox_relay::postgres::table::Module;
use tokio::sync::Mutex;
use tokio_postgres::{Client, NoTls};

use crate::process::Process;
use crate::support::kafka_server::{KafkaServer, Settings};
use crate::support::postgres_server::{PostgresServer, free_port};
use crate::support::roles::{Roles, url_of};
use crate::support::topics::Cluster;

pub const TOPIC: &str = "events.payment";
pub const GROUP: &str = "balances";
/// How long a request is locked. Short, so that locks expire during a run. A real API uses a longer time.
pub const LOCK_SECONDS: u64 = 2;
/// The partitions of a dead consumer are reassigned after this time.
const SESSION_TIMEOUT_MS: &str = "2000";

/// The role of the applications. It may use their own tables, and has the privileges for writers and the
/// modules of `migrate --print-roles`.
const APPLICATION_ROLE: &str = "
CREATE ROLE shop LOGIN IN ROLE {groups};
GRANT USAGE ON SCHEMA provider TO shop;
GRANT SELECT, INSERT, UPDATE
ON payment, ledger_entry, posting, balance, consumed, unreadable_record, provider.charge TO shop;";

/// The targets of faults. Each part is locked while a fault affects it.
pub struct World {
    pub postgres: Arc<Mutex<PostgresServer>>,
    pub kafka: Mutex<KafkaServer>,
    pub relays: Vec<Mutex<Process>>,
    pub provider: Vec<Mutex<Process>>,
    pub apis: Vec<Mutex<Process>>,
    pub consumers: Vec<Mutex<Process>>,
    pub clients: Vec<Mutex<Process>>,
    /// The journal of each client.
    pub journals: Vec<PathBuf>,
    pub cluster: Cluster,
    /// The URL of the database for its superuser.
    url: String,
}

impl World {
    /// Creates the world without starting processes. Logs and journals are in the folder.
    pub async fn create(folder: &Path, mistakes: &[&str]) -> World {
        // Commits must survive a crash, because the guarantees cover only durable commits.
        let postgres = PostgresServer::start(&[("fsync", "on"), ("max_connections", "100")]).await;
        let properties = vec![("group.min.session.timeout.ms", "500")];
        let kafka = KafkaServer::start_with(Settings { properties, ..Settings::default() }).await;
        let (url, cluster) = (postgres.url(), kafka.cluster());

        let payments = Path::new(env!("CARGO_BIN_EXE_payments"));
        let relay = relay_binary();
        let config = |name: &str, url: &str| write_config(folder, name, url, &cluster.bootstrap);
        migrate(folder, &url).await;
        let prepare = ["prepare", "--database", &url, "--kafka", &cluster.bootstrap];
        Process::new("prepare", payments, &prepare, folder).succeeds().await;

        let client = connect(&url).await;
        let roles = Roles::create(&client, &"public.outbox".parse().unwrap()).await;
        let [inbox, idempotency] = [Module::Inbox, Module::Idempotency].map(|module| roles.module(module));
        let groups = [roles.writer(), inbox, idempotency].join(", ");
        client.batch_execute(&APPLICATION_ROLE.replace("{groups}", &groups)).await.unwrap();
        let as_shop = url_of("shop", &url);
        let numbered = |what: &str, count: usize, arguments: &dyn Fn(&str) -> Vec<String>| {
            let one = |number| {
                let name = format!("{what}-{number}");
                let arguments = arguments(&name);
                let program = if what == "relay" { &relay } else { payments };
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                Mutex::new(Process::new(&name, program, &arguments, folder))
            };
            (1..=count).map(one).collect::<Vec<_>>()
        };
        let as_relay = url_of(roles.relay(), &url);
        let relays = numbered("relay", 2, &|name| words(&["run", "--config", &config(name, &as_relay)]));

        let wrong = |mistake: &str| {
            let makes_it = mistakes.contains(&mistake);
            if makes_it { words(&["--mistake", mistake]) } else { Vec::new() }
        };
        let listens_at = address();
        let asked_at = format!("http://{listens_at}");
        let provider = numbered("provider", 1, &|_| {
            words(&["provider", "--database", &as_shop, "--listen", &listens_at])
        });
        let addresses = [address(), address()];
        let lock = LOCK_SECONDS.to_string();
        let apis = numbered("api", 2, &|name| {
            let listen = if name == "api-1" { &addresses[0] } else { &addresses[1] };
            let api = ["api", "--database", &as_shop, "--listen", listen, "--provider", &asked_at];
            let mistakes = [wrong("new-key-for-provider"), wrong("response-after-commit")].concat();
            [words(&api), words(&["--lock-seconds", &lock]), mistakes].concat()
        });
        let consumers = numbered("consumer", 2, &|name| {
            let consumer =
                ["consumer", "--name", name, "--database", &as_shop, "--kafka", &cluster.bootstrap];
            let timeout = words(&["--session-timeout-ms", SESSION_TIMEOUT_MS]);
            [words(&consumer), timeout, wrong("no-inbox")].concat()
        });
        let journal = |name: &str| folder.join(format!("{name}.journal"));
        let clients = numbered("client", 4, &|name| {
            let [first, second] = addresses.each_ref().map(|address| format!("http://{address}"));
            let journal = journal(name);
            let client = ["client", "--name", name, "--api", &first, "--api", &second];
            [words(&client), words(&["--payments", "1000000", "--journal", journal.to_str().unwrap()])]
                .concat()
        });
        let journals = (1..=clients.len()).map(|number| journal(&format!("client-{number}"))).collect();
        World {
            postgres: Arc::new(Mutex::new(postgres)),
            kafka: Mutex::new(kafka),
            relays,
            provider,
            apis,
            consumers,
            clients,
            journals,
            cluster,
            url,
        }
    }

    /// All processes, in the order in which they are started.
    pub fn processes(&self) -> impl Iterator<Item = &Mutex<Process>> {
        self.relays.iter().chain(&self.provider).chain(&self.apis).chain(&self.consumers).chain(&self.clients)
    }

    pub async fn start(&self) {
        for process in self.processes() {
            process.lock().await.start();
        }
    }

    /// A connection to a running server.
    pub async fn connect(&self) -> Client {
        connect(&self.url).await
    }
}

/// Creates the outbox and the tables of the modules with the relay's own command.
pub async fn migrate(folder: &Path, url: &str) {
    let config = write_config(folder, "migrate", url, "localhost:9092");
    let migrate = ["migrate", "--with", "inbox,idempotency", "--config", &config];
    Process::new("migrate", &relay_binary(), &migrate, folder).succeeds().await;
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn address() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// The binary that was built next to the example, or the one that `OUTBOX_RELAY_TEST_BINARY` names.
fn relay_binary() -> PathBuf {
    let built = || Path::new(env!("CARGO_BIN_EXE_payments")).with_file_name("outbox-relay");
    let binary = std::env::var_os("OUTBOX_RELAY_TEST_BINARY").map_or_else(built, PathBuf::from);
    assert!(binary.exists(), "{} is missing: run `cargo build` first", binary.display());
    binary
}

/// Writes the configuration of a relay with this name. Returns its path.
fn write_config(folder: &Path, name: &str, url: &str, bootstrap: &str) -> String {
    let path = folder.join(format!("{name}.toml"));
    let config = format!(
        "[postgres]
url = \"{url}\"
application_name = \"{name}\"
[kafka]
bootstrap_servers = \"{bootstrap}\"
[relay]
takeover_timeout = \"3s\"
publish_timeout = \"10s\"
[admin]
listen = \"off\"
[log]
format = \"text\"
"
    );
    std::fs::write(&path, config).unwrap();
    path.to_str().unwrap().to_owned()
}
