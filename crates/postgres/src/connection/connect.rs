//! The connection pool.
//!
//! The pool does not check a connection before it returns it (`RecyclingMethod::Fast`). The check would cost a round trip,
//! and a transaction on a broken connection fails without harm. Secrets and certificates are reloaded at every connect, so
//! that rotated ones are used.

use crate::connection::dial::{CONNECT_TIMEOUT, Connection, Dialer};
use crate::connection::ending::Ending;
use crate::connection::fault::{fault, fault_at, unavailable};
use crate::connection::password_command;
use crate::connection::tls::CachedConnector;
use crate::options::{ConnectionError, Postgres};
use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime};
use relay::failure::{FaultKind, PostgresFault};
use relay::health::stats::Stats;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_postgres::config::Host;

/// How long to wait for a free connection. The pool is large enough, so this never happens.
const POOL_WAIT: Duration = Duration::from_secs(60);
/// The timeout for all hosts in the URL together, in multiples of `connect_timeout`. It includes TLS and authentication,
/// which `connect_timeout` does not limit: a frozen server still accepts connections.
const CONNECT_TIMEOUTS: u32 = 4;
const CONNECTING: &str = "connecting to PostgreSQL";

/// The database, through a pool of connections.
#[derive(Clone)]
pub struct Database {
    settings: Arc<Mutex<Postgres>>,
    prepares: bool,
    latest: LatestSettings,
    tls: Arc<CachedConnector>,
    server: ServerVersion,
    ending: Ending,
    stats: Arc<Stats>,
    pool: Pool,
}

impl Database {
    /// A pool of up to `connections`. Opens none yet.
    pub fn new(
        settings: &Postgres,
        connections: usize,
        stats: Arc<Stats>,
    ) -> Result<Database, PostgresFault> {
        LazyLock::force(&PROCESS_START);
        let latest = LatestSettings::default();
        let server = ServerVersion::default();
        let ending = Ending::default();
        let connect = Connect {
            latest: latest.clone(),
            server: server.clone(),
            ending: ending.clone(),
            stats: Arc::clone(&stats),
        };
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        // `Connect` uses the latest settings; the ones given here are never used.
        let manager = Manager::from_connect(tokio_postgres::Config::new(), connect, recycling);
        let pool = Pool::builder(manager)
            .max_size(connections)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(POOL_WAIT))
            .create_timeout(Some(connect_within(settings)))
            .build()
            .map_err(|error| unavailable(CONNECTING, error.to_string()))?;
        let (settings, prepares) = (Arc::new(Mutex::new(settings.clone())), settings.prepared_statements);
        Ok(Database { settings, prepares, latest, tls: Arc::default(), server, ending, stats, pool })
    }

    /// Returns a free connection, or opens one.
    pub async fn get(&self) -> Result<Object, PostgresFault> {
        // The pool would replace a connection that the server has closed, with settings that were read long ago.
        self.pool.retain(|connection, _| !connection.is_closed());
        // Only before a new connection, because it reads files and may run a command.
        if self.pool.status().available == 0 {
            self.read_settings().await?;
        }
        self.pool.get().await.map_err(|error| match error {
            // A failed connect is always retried: a password may be rotated, other connections may end.
            PoolError::Backend(error) => {
                let place = format!(" ({})", self.latest.servers());
                PostgresFault { kind: FaultKind::Unavailable, ..fault_at(&place, CONNECTING, error) }
            }
            PoolError::Timeout(_) => {
                let servers = self.latest.servers();
                unavailable(
                    CONNECTING,
                    format!(
                        "no response ({servers}). Fix: check that PostgreSQL is listening there and is not overloaded"
                    ),
                )
            }
            other => unavailable(CONNECTING, other.to_string()),
        })
    }

    /// Uses these settings for new connections. They must lead to the same database. Open connections stay.
    pub fn reconfigure(&self, settings: &Postgres) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = settings.clone();
    }

    /// Counts a transaction that is about to begin.
    pub(crate) fn count_transaction(&self) {
        self.stats.postgres_transactions.inc();
    }

    /// Whether to use prepared statements.
    pub fn prepares(&self) -> bool {
        self.prepares
    }

    /// The version of the server of the latest connection, like `server_version_num`; 0 if it is unknown.
    pub(crate) fn server_version_num(&self) -> u32 {
        self.server.0.load(Ordering::Relaxed)
    }

    /// Why the server ended a session.
    pub(crate) fn ending(&self) -> Ending {
        self.ending.clone()
    }

    async fn read_settings(&self) -> Result<(), PostgresFault> {
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut connection = settings.connection().map_err(|error| unavailable(CONNECTING, chain(&error)))?;
        if let Some(command) = &settings.password_command {
            let password = password_command::run(command).await;
            connection.config.password(password.map_err(|error| unavailable(CONNECTING, error))?.expose());
        }
        let tls =
            self.tls.get(&connection.tls).map_err(|error| unavailable(CONNECTING, error.to_string()))?;
        *self.latest.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Dialer::new(connection, tls));
        Ok(())
    }
}

/// For a program that finds relays by their `application_name`: returns that name, and the settings with
/// which the program itself connects. They append its purpose to the name. It prepares no statements, so that it
/// works behind any pooler.
pub fn monitoring_settings(
    settings: &Postgres,
    purpose: &str,
) -> Result<(String, Postgres), ConnectionError> {
    let connection = settings.connection()?;
    let name = connection.config.get_application_name().unwrap_or_default().to_owned();
    let mut settings = settings.clone();
    settings.application_name = Some(format!("{name} {purpose}"));
    settings.prepared_statements = false;
    Ok((name, settings))
}

/// The longest time that it takes to connect or to fail.
pub fn connect_within(settings: &Postgres) -> Duration {
    CONNECT_TIMEOUTS * settings.connect_timeout.unwrap_or(CONNECT_TIMEOUT)
}

static PROCESS_START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Identifies a connection of this process, by the time when it was opened.
pub(crate) fn serial(connection: &Object) -> u64 {
    let created = Object::metrics(connection).created;
    created.saturating_duration_since(*PROCESS_START).as_nanos() as u64
}

/// The settings for the next connection.
#[derive(Clone, Default)]
struct LatestSettings(Arc<Mutex<Option<Dialer>>>);

impl LatestSettings {
    /// The hosts and ports, for messages. The URL may be in a file that the reader of the log cannot see.
    fn servers(&self) -> String {
        let latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Dialer { config, .. }) = latest.as_ref() else { return String::new() };
        let names: Vec<String> = match config.get_hosts() {
            [] => config.get_hostaddrs().iter().map(ToString::to_string).collect(),
            hosts => hosts.iter().map(host_name).collect(),
        };
        let ports = config.get_ports();
        let server = |(place, name): (usize, &String)| match ports.get(place).or(ports.first()) {
            Some(port) => format!("{name}:{port}"),
            None => format!("{name}:5432"),
        };
        names.iter().enumerate().map(server).collect::<Vec<_>>().join(", ")
    }
}

fn host_name(host: &Host) -> String {
    match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(folder) => folder.display().to_string(),
    }
}

/// The version that the server reported at the latest connect; 0 before.
#[derive(Clone, Default)]
struct ServerVersion(Arc<AtomicU32>);

impl ServerVersion {
    /// For example `17.2 (Debian 17.2-1)` or `18beta1`.
    fn set(&self, reported: Option<&str>) {
        let reported = reported.unwrap_or_default();
        let mut numbers =
            reported.split(|other: char| !other.is_ascii_digit()).map(|digits| digits.parse().unwrap_or(0));
        let (major, minor): (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        // A beta has no minor version.
        let minor = if reported.starts_with(&format!("{major}.")) { minor } else { 0 };
        self.0.store(major * 10_000 + minor, Ordering::Relaxed);
    }
}

struct Connect {
    latest: LatestSettings,
    server: ServerVersion,
    ending: Ending,
    stats: Arc<Stats>,
}

type Connected = Result<(tokio_postgres::Client, JoinHandle<()>), tokio_postgres::Error>;

impl deadpool_postgres::Connect for Connect {
    fn connect(&self, _: &tokio_postgres::Config) -> Pin<Box<dyn Future<Output = Connected> + Send + '_>> {
        let latest = self.latest.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(async move {
            let Some(dialer) = latest else { unreachable!("Database::get reads the settings first") };
            let (client, connection) = dialer.connect().await?;
            self.server.set(connection.parameter("server_version"));
            self.stats.postgres_connections.inc();
            Ok((client, tokio::spawn(drive(connection, self.ending.clone()))))
        })
    }
}

/// Drives a connection until it ends. Notes the reason before it drops the connection, which fails its statements.
async fn drive(mut connection: Connection, ending: Ending) {
    if let Err(error) = (&mut connection).await
        && error.as_db_error().is_some()
    {
        ending.note(fault(CONNECTING, error).message);
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
