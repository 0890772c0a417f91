//! Connections to Postgres, held by a pool.
//!
//! The pool hands a connection out without asking the server first (`RecyclingMethod::Fast`): every transaction of the
//! relay finds a broken connection out by itself, loses nothing by it, and would otherwise pay a round trip each time.
//! Secrets and certificates are read again at every connect, so that rotated ones are taken up.

use crate::config;
use crate::postgres::connection::fault::{fault, unavailable};
use crate::postgres::connection::session::TRANSACTION_TIMEOUT_SINCE;
use crate::postgres::connection::tls;
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

/// Waits for a free connection no longer than this: the pool has one for everybody, so it never comes to that.
const POOL_WAIT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How many `connect_timeout`s all hosts of the URL get together, with TLS and authentication, which it does not bound:
/// a server that froze still accepts.
const CONNECT_TIMEOUTS: u32 = 4;
const CONNECTING: &str = "connecting to Postgres";

/// The way to the database.
#[derive(Clone)]
pub struct Database {
    settings: Arc<Mutex<config::Postgres>>,
    prepares: bool,
    latest: Latest,
    server: ServerVersion,
    stats: Arc<Stats>,
    pool: Pool,
}

impl Database {
    /// Up to `connections` at once. Opens none yet.
    pub fn new(
        settings: &config::Postgres,
        connections: usize,
        stats: Arc<Stats>,
    ) -> Result<Database, Fault> {
        LazyLock::force(&BEGUN);
        let latest = Latest::default();
        let server = ServerVersion::default();
        let connect = Connect { latest: latest.clone(), server: server.clone(), stats: Arc::clone(&stats) };
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
        Ok(Database { settings, prepares, latest, server, stats, pool })
    }

    /// A connection, a new one if none is free.
    pub async fn get(&self) -> Result<Object, Fault> {
        // Only for a connection that has to be made: reading the system's certificates takes tens of milliseconds,
        // and everybody else on this thread would wait for that.
        if self.pool.status().available == 0 {
            self.read_settings()?;
        }
        self.pool.get().await.map_err(|error| match error {
            // A failed connect is a matter of waiting, whatever the server said: a wrong password may be rotated,
            // too many connections may end.
            PoolError::Backend(error) => {
                let Fault { doing, message, .. } = fault(CONNECTING, error);
                let message = format!("{message} ({})", self.latest.servers());
                Fault { kind: FaultKind::Unavailable, doing, message }
            }
            other => unavailable(CONNECTING, other.to_string()),
        })
    }

    /// Connects with these settings from now on; they have to lead to the same database. What is connected stays.
    pub fn reconfigure(&self, settings: &config::Postgres) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = settings.clone();
    }

    /// A transaction is about to begin.
    pub(crate) fn count_transaction(&self) {
        self.stats.postgres_transactions.inc();
    }

    /// Whether statements may be prepared.
    pub fn prepares(&self) -> bool {
        self.prepares
    }

    /// Whether the server to which the last connection was made knows `transaction_timeout`.
    pub(crate) fn knows_transaction_timeout(&self) -> bool {
        self.server.0.load(Ordering::Relaxed) >= TRANSACTION_TIMEOUT_SINCE
    }

    fn read_settings(&self) -> Result<(), Fault> {
        let unusable = |error: &dyn std::error::Error| unavailable(CONNECTING, chain(error));
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut connection = settings.connection().map_err(|error| unusable(&error))?;
        if connection.config.get_connect_timeout().is_none() {
            connection.config.connect_timeout(CONNECT_TIMEOUT);
        }
        let tls = tls::connector(&connection.tls).map_err(|error| unusable(&error))?;
        *self.latest.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((connection.config, tls));
        Ok(())
    }
}

/// A connection is made, or not, within this time.
pub fn connect_within(settings: &config::Postgres) -> Duration {
    CONNECT_TIMEOUTS * settings.connect_timeout.unwrap_or(CONNECT_TIMEOUT)
}

static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Tells one connection of this process from another, by the moment when it was made.
pub(crate) fn serial(connection: &Object) -> u64 {
    let created = Object::metrics(connection).created;
    created.saturating_duration_since(*BEGUN).as_nanos() as u64
}

/// What the next connect uses.
#[derive(Clone, Default)]
struct Latest(Arc<Mutex<Option<(tokio_postgres::Config, MakeTlsConnector)>>>);

impl Latest {
    /// Where it leads, for a message: the URL may stand in a file that the reader of the log does not see.
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

/// The major version that the server reported at the last connect; 0 before that.
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
    latest: Latest,
    server: ServerVersion,
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
            Ok((client, tokio::spawn(async { _ = connection.await })))
        })
    }
}

/// Tries one host of the URL after the other. `connect_timeout` bounds all that one of them may take: a server that froze
/// accepts connections for long, and must not keep us from the one that took over. The last one is bounded by the pool.
async fn connect(
    config: &tokio_postgres::Config,
    tls: &MakeTlsConnector,
) -> Result<(tokio_postgres::Client, Connection), tokio_postgres::Error> {
    let mut hosts = each_host(config);
    let last = hosts.pop();
    for host in &hosts {
        let patience = host.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT);
        match timeout(patience, host.connect(tls.clone())).await {
            Ok(Ok(connected)) => return Ok(connected),
            Ok(Err(error)) => tracing::debug!("{}", fault(CONNECTING, error)),
            Err(_) => tracing::debug!("{CONNECTING}: no response within {patience:?}, trying the next host"),
        }
    }
    last.as_ref().unwrap_or(config).connect(tls.clone()).await
}

/// The same settings for each host alone, in the order in which they are to be tried.
fn each_host(all: &tokio_postgres::Config) -> Vec<tokio_postgres::Config> {
    let places = all.get_hosts().len().max(all.get_hostaddrs().len());
    let mut hosts: Vec<_> = (0..places).map(|place| one_host(all, place)).collect();
    if all.get_load_balance_hosts() == LoadBalanceHosts::Random {
        fastrand::shuffle(&mut hosts);
    }
    hosts
}

/// `tokio_postgres` takes no host back, so everything else is copied.
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
    fn a_host_alone_has_all_the_settings_of_the_url() {
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
