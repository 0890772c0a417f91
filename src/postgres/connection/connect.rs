//! The connection pool.
//!
//! The pool does not check a connection before it returns it (`RecyclingMethod::Fast`). The check would cost a round trip,
//! and a transaction on a broken connection fails without harm. Secrets and certificates are reloaded at every connect, so
//! that rotated ones are used.

use crate::config;
use crate::postgres::connection::ending::Ending;
use crate::postgres::connection::fault::{fault, fault_at, unavailable};
use crate::postgres::connection::password_command;
use crate::postgres::connection::session::TRANSACTION_TIMEOUT_SINCE;
use crate::postgres::connection::tls::CachedConnector;
use crate::relay::failure::{Fault, FaultKind};
use crate::relay::health::stats::Stats;
use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime};
use postgres_openssl::MakeTlsConnector;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::config::{Host, LoadBalanceHosts};

/// How long to wait for a free connection. The pool is large enough, so this never happens.
const POOL_WAIT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout for all hosts in the URL together, in multiples of `connect_timeout`. It includes TLS and authentication,
/// which `connect_timeout` does not limit: a frozen server still accepts connections.
const CONNECT_TIMEOUTS: u32 = 4;
const CONNECTING: &str = "connecting to PostgreSQL";

/// The database, through a pool of connections.
#[derive(Clone)]
pub struct Database {
    settings: Arc<Mutex<config::Postgres>>,
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
        settings: &config::Postgres,
        connections: usize,
        stats: Arc<Stats>,
    ) -> Result<Database, Fault> {
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
    pub async fn get(&self) -> Result<Object, Fault> {
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
                let Fault { doing, message, .. } = fault_at(&place, CONNECTING, error);
                // The client library repeats what `doing` says.
                let message = message.replacen("error connecting to server: ", "", 1);
                Fault { kind: FaultKind::Unavailable, doing, message }
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
    pub(crate) fn reconfigure(&self, settings: &config::Postgres) {
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

    /// Whether the server of the latest connection has the setting `transaction_timeout`.
    pub(crate) fn has_transaction_timeout(&self) -> bool {
        self.server.0.load(Ordering::Relaxed) >= TRANSACTION_TIMEOUT_SINCE
    }

    /// Why the server ended a session.
    pub(crate) fn ending(&self) -> Ending {
        self.ending.clone()
    }

    async fn read_settings(&self) -> Result<(), Fault> {
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut connection = settings.connection().map_err(|error| unavailable(CONNECTING, chain(&error)))?;
        if let Some(command) = &settings.password_command {
            let password = password_command::run(command).await;
            connection.config.password(password.map_err(|error| unavailable(CONNECTING, error))?.expose());
        }
        if connection.config.get_connect_timeout().is_none() {
            connection.config.connect_timeout(CONNECT_TIMEOUT);
        }
        let tls =
            self.tls.get(&connection.tls).map_err(|error| unavailable(CONNECTING, error.to_string()))?;
        *self.latest.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((connection.config, tls));
        Ok(())
    }
}

/// For a program that finds relays by their `application_name`: returns that name, and the settings with
/// which the program itself connects. They append its purpose to the name. It prepares no statements, so that it
/// works behind any pooler.
pub(crate) fn monitoring_settings(
    settings: &config::Postgres,
    purpose: &str,
) -> Result<(String, config::Postgres), config::ConnectionError> {
    let connection = settings.connection()?;
    let name = connection.config.get_application_name().unwrap_or_default().to_owned();
    let mut settings = settings.clone();
    settings.application_name = Some(format!("{name} {purpose}"));
    settings.prepared_statements = false;
    Ok((name, settings))
}

/// The longest time that it takes to connect or to fail.
pub(crate) fn connect_within(settings: &config::Postgres) -> Duration {
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
struct LatestSettings(Arc<Mutex<Option<(tokio_postgres::Config, MakeTlsConnector)>>>);

impl LatestSettings {
    /// The hosts and ports, for messages. The URL may be in a file that the reader of the log cannot see.
    fn servers(&self) -> String {
        let latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((config, _)) = latest.as_ref() else { return String::new() };
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

/// The major version that the server reported at the latest connect; 0 before.
#[derive(Clone, Default)]
struct ServerVersion(Arc<AtomicU32>);

impl ServerVersion {
    /// For example `17.2 (Debian 17.2-1)` or `18beta1`.
    fn set(&self, reported: Option<&str>) {
        let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>();
        let major = reported.map(digits).and_then(|major| major.parse().ok());
        self.0.store(major.unwrap_or(0), Ordering::Relaxed);
    }
}

struct Connect {
    latest: LatestSettings,
    server: ServerVersion,
    ending: Ending,
    stats: Arc<Stats>,
}

type Connection =
    tokio_postgres::Connection<tokio_postgres::Socket, postgres_openssl::TlsStream<tokio_postgres::Socket>>;
type Connected = Result<(tokio_postgres::Client, JoinHandle<()>), tokio_postgres::Error>;

impl deadpool_postgres::Connect for Connect {
    fn connect(&self, _: &tokio_postgres::Config) -> Pin<Box<dyn Future<Output = Connected> + Send + '_>> {
        let latest = self.latest.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(async move {
            let Some((config, tls)) = latest else { unreachable!("Database::get reads the settings first") };
            let (client, connection) = connect(&config, &tls).await?;
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

/// Tries the hosts in the URL one after the other, each for at most `connect_timeout`. A frozen server still accepts
/// connections, and must not keep the relay from the server that took over. The pool limits the last attempt.
async fn connect(
    config: &tokio_postgres::Config,
    tls: &MakeTlsConnector,
) -> Result<(tokio_postgres::Client, Connection), tokio_postgres::Error> {
    let mut hosts = each_host(config);
    let last = hosts.pop();
    for host in &hosts {
        let limit = host.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT);
        match timeout(limit, host.connect(tls.clone())).await {
            Ok(Ok(connected)) => return Ok(connected),
            Ok(Err(error)) => tracing::debug!("{}", fault(CONNECTING, error)),
            Err(_) => tracing::debug!("{CONNECTING}: no response within {limit:?}, trying the next host"),
        }
    }
    last.as_ref().unwrap_or(config).connect(tls.clone()).await
}

/// The settings for each host, in the order in which to try them.
fn each_host(all: &tokio_postgres::Config) -> Vec<tokio_postgres::Config> {
    let places = all.get_hosts().len().max(all.get_hostaddrs().len());
    let mut hosts: Vec<_> = (0..places).map(|place| one_host(all, place)).collect();
    if all.get_load_balance_hosts() == LoadBalanceHosts::Random {
        fastrand::shuffle(&mut hosts);
    }
    hosts
}

/// A host cannot be removed from a `tokio_postgres::Config`, so this copies everything else.
fn one_host(all: &tokio_postgres::Config, place: usize) -> tokio_postgres::Config {
    let mut one = tokio_postgres::Config::new();
    match all.get_hosts().get(place) {
        Some(Host::Tcp(name)) => _ = one.host(name),
        Some(Host::Unix(path)) => _ = one.host_path(path),
        None => {}
    }
    all.get_hostaddrs().get(place).map(|address| one.hostaddr(*address));
    let ports = all.get_ports();
    ports.get(place).or(ports.first()).map(|port| one.port(*port));
    all.get_user().map(|user| one.user(user));
    all.get_password().map(|password| one.password(password));
    all.get_dbname().map(|name| one.dbname(name));
    all.get_options().map(|options| one.options(options));
    all.get_application_name().map(|name| one.application_name(name));
    all.get_connect_timeout().map(|time| one.connect_timeout(*time));
    all.get_tcp_user_timeout().map(|time| one.tcp_user_timeout(*time));
    all.get_keepalives_interval().map(|time| one.keepalives_interval(time));
    all.get_keepalives_retries().map(|retries| one.keepalives_retries(retries));
    one.keepalives(all.get_keepalives())
        .keepalives_idle(all.get_keepalives_idle())
        .ssl_mode(all.get_ssl_mode())
        .ssl_negotiation(all.get_ssl_negotiation())
        .target_session_attrs(all.get_target_session_attrs())
        .channel_binding(all.get_channel_binding())
        .load_balance_hosts(all.get_load_balance_hosts());
    one
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_one_host_include_all_settings_of_the_url() {
        let url = "host=one,two hostaddr=127.0.0.1,127.0.0.2 port=1,2 user=u password=p dbname=d options=o \
                   application_name=a sslmode=require sslnegotiation=direct connect_timeout=3 tcp_user_timeout=4 \
                   keepalives=1 keepalives_idle=5 keepalives_interval=6 keepalives_retries=7 \
                   target_session_attrs=read-write channel_binding=require load_balance_hosts=disable";
        let alone = url.replace("one,two", "two").replace("127.0.0.1,127.0.0.2", "127.0.0.2");
        let alone = alone.replace("port=1,2", "port=2");
        let parse = |url: &str| url.parse::<tokio_postgres::Config>().unwrap();
        let hosts = each_host(&parse(url));
        assert_eq!(hosts.len(), 2);
        assert_eq!(hosts[1], parse(&alone));
        let socket = parse("host=/run/one,/run/two user=u port=9");
        assert_eq!(each_host(&socket)[1], parse("host=/run/two user=u port=9"));
    }
}
