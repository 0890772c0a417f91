//! The connection pool, why the server ended a session, and whether a pooler is between the relay and the server.
//!
//! The pool does not check a connection before it returns it (`RecyclingMethod::Fast`). The check would cost a round trip,
//! and a transaction on a broken connection fails without harm. Secrets and certificates are reloaded at every connect, so
//! that rotated ones are used.

use crate::connection::dial::{CONNECT_TIMEOUT, CONNECT_TIMEOUTS, Connection, Dialer, PORT};
use crate::connection::errors::{answer, fault, fault_at, unavailable};
use crate::connection::tls::CachedConnector;
use crate::connection::{exec, password_command};
use crate::options::{CONNECT_TIMEOUT_MAX, ConnectionError, Postgres};
use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime};
use relay::failure::{FaultKind, PostgresFault};
use relay::health::stats::Stats;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio::time;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Error};

/// How long to wait for a free connection. The pool is large enough, so this never happens.
const POOL_WAIT: Duration = Duration::from_secs(60);
const CONNECTING: &str = "connecting to PostgreSQL";

/// The database, through a pool of connections.
#[derive(Clone)]
pub struct Database {
    shared: Arc<Shared>,
    pool: Pool,
}

/// What the pool shares with the code that opens its connections.
struct Shared {
    settings: Mutex<Postgres>,
    prepares: bool,
    /// For the next connection; `None` before the first one.
    dialer: Mutex<Option<Dialer>>,
    tls: CachedConnector,
    /// As the server reported it at the latest connect; 0 before.
    server_version_num: AtomicU32,
    ending: Ending,
    stats: Arc<Stats>,
}

impl Database {
    /// A pool of up to `connections`. Opens none yet.
    pub fn new(
        settings: &Postgres,
        connections: usize,
        stats: Arc<Stats>,
    ) -> Result<Database, PostgresFault> {
        LazyLock::force(&PROCESS_START);
        let shared = Arc::new(Shared {
            settings: Mutex::new(settings.clone()),
            prepares: settings.prepared_statements,
            dialer: Mutex::default(),
            tls: CachedConnector::default(),
            server_version_num: AtomicU32::default(),
            ending: Ending::default(),
            stats,
        });
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        // `Connect` uses the latest settings; the ones given here are never used.
        let connect = Connect(Arc::clone(&shared));
        let manager = Manager::from_connect(tokio_postgres::Config::new(), connect, recycling);
        let pool = Pool::builder(manager)
            .max_size(connections)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(POOL_WAIT))
            .build()
            .map_err(|error| unavailable(CONNECTING, error.to_string()))?;
        Ok(Database { shared, pool })
    }

    pub async fn get(&self) -> Result<Object, PostgresFault> {
        // The pool would replace a connection that the server has closed, with settings that were read long ago.
        self.pool.retain(|connection, _| !connection.is_closed());
        // Only before a new connection, because it reads files and may run a command.
        if self.pool.status().available == 0 {
            self.shared.read_settings().await?;
        }
        self.pool.get().await.map_err(|error| match error {
            // A failed connect is always retried: a password may be rotated, other connections may end.
            PoolError::Backend(error) => {
                let place = format!(" ({})", self.shared.servers());
                PostgresFault { kind: FaultKind::Unavailable, ..fault_at(&place, CONNECTING, error) }
            }
            other => unavailable(CONNECTING, other.to_string()),
        })
    }

    /// Uses these settings for new connections. They must lead to the same database. Open connections stay.
    pub fn reconfigure(&self, settings: &Postgres) {
        *lock(&self.shared.settings) = settings.clone();
    }

    pub(crate) fn count_transaction(&self) {
        self.shared.stats.postgres_transactions.inc();
    }

    pub fn prepares(&self) -> bool {
        self.shared.prepares
    }

    /// The version of the server of the latest connection, like `server_version_num`; 0 if it is unknown.
    pub(crate) fn server_version_num(&self) -> u32 {
        self.shared.server_version_num.load(Ordering::Relaxed)
    }

    pub(crate) fn ending(&self) -> Ending {
        self.shared.ending.clone()
    }
}

impl Shared {
    async fn read_settings(&self) -> Result<(), PostgresFault> {
        let settings = lock(&self.settings).clone();
        let mut connection = settings.connection().map_err(|error| unavailable(CONNECTING, chain(&error)))?;
        if let Some(command) = &settings.password_command {
            let password = password_command::run(command).await;
            connection.config.password(password.map_err(|error| unavailable(CONNECTING, error))?.expose());
        }
        let tls =
            self.tls.get(&connection.tls).map_err(|error| unavailable(CONNECTING, error.to_string()))?;
        *lock(&self.dialer) = Some(Dialer::new(connection, tls));
        Ok(())
    }

    /// The hosts and ports, for messages. The URL may be in a file that the reader of the log cannot see.
    fn servers(&self) -> String {
        let latest = lock(&self.dialer);
        let Some(Dialer { config, .. }) = latest.as_ref() else { return String::new() };
        let name = |host: &Host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(folder) => folder.display().to_string(),
        };
        let names: Vec<String> = match config.get_hosts() {
            [] => config.get_hostaddrs().iter().map(ToString::to_string).collect(),
            hosts => hosts.iter().map(name).collect(),
        };
        let ports = config.get_ports();
        let server = |(place, name): (usize, &String)| {
            let port = ports.get(place).or(ports.first()).copied().unwrap_or(PORT);
            format!("{name}:{port}")
        };
        names.iter().enumerate().map(server).collect::<Vec<_>>().join(", ")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
    // The setting is unset only if the URL has the parameter, which has no maximum.
    let in_url = || settings.connection().ok()?.config.get_connect_timeout().copied();
    let timeout = settings.connect_timeout.or_else(in_url).unwrap_or(CONNECT_TIMEOUT);
    CONNECT_TIMEOUTS * timeout.min(CONNECT_TIMEOUT_MAX)
}

static PROCESS_START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Identifies a connection of this process, by the time when it was opened.
pub(crate) fn serial(connection: &Object) -> u64 {
    let created = Object::metrics(connection).created;
    created.saturating_duration_since(*PROCESS_START).as_nanos() as u64
}

/// `server_version_num` of a version such as `17.2 (Debian 17.2-1)` or `18beta1`.
fn version_num(reported: &str) -> u32 {
    let mut numbers =
        reported.split(|other: char| !other.is_ascii_digit()).map(|digits| digits.parse().unwrap_or(0));
    let (major, minor): (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    // A beta has no minor version.
    let minor = if reported.starts_with(&format!("{major}.")) { minor } else { 0 };
    major * 10_000 + minor
}

struct Connect(Arc<Shared>);

type Connected = Result<(Client, JoinHandle<()>), Error>;

impl deadpool_postgres::Connect for Connect {
    fn connect(&self, _: &tokio_postgres::Config) -> Pin<Box<dyn Future<Output = Connected> + Send + '_>> {
        let Connect(shared) = self;
        let latest = lock(&shared.dialer).clone();
        Box::pin(async move {
            let Some(dialer) = latest else { unreachable!("Database::get reads the settings first") };
            let (client, connection) = dialer.connect().await?;
            let version = connection.parameter("server_version").unwrap_or_default();
            shared.server_version_num.store(version_num(version), Ordering::Relaxed);
            shared.stats.postgres_connections.inc();
            Ok((client, tokio::spawn(drive(connection, shared.ending.clone()))))
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
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The error of the client library for a statement on a connection that has ended.
const CLOSED: &str = "connection closed";
/// A claim notices the end of its session at the latest when it is kept alive.
const RECENT: Duration = Duration::from_secs(30);

/// The error with which the server last ended a session of this process, until a fault is explained by it.
#[derive(Clone, Default)]
pub(crate) struct Ending(Arc<Mutex<Option<(time::Instant, String)>>>);

impl Ending {
    pub(crate) fn note(&self, error: String) {
        *lock(&self.0) = Some((time::Instant::now(), error));
    }

    /// Replaces the message "connection closed" of a fault by the error with which the server has just ended a session.
    pub(crate) fn explain(&self, fault: PostgresFault) -> PostgresFault {
        if fault.message != CLOSED {
            return fault;
        }
        match lock(&self.0).take().filter(|(at, _)| at.elapsed() <= RECENT) {
            Some((_, error)) => PostgresFault {
                message: format!("the server ended one of this relay's sessions: {error}"),
                ..fault
            },
            None => fault,
        }
    }
}

const LOOKING_FOR_POOLER: &str = "looking for a pooler";
/// A server begins a transaction at once. A pooler without a free connection makes it wait.
const BEGINS_WITHIN: Duration = Duration::from_secs(3);

/// Whether a pooler in transaction mode gives each transaction another connection to the server.
///
/// Begins and ends transactions on two connections at once, then checks whether the first connection still has the same
/// server process. A pooler assigns the process that became free last, or first, so this tries both orders. A pooler in
/// session mode is not detected, because it makes no difference to the relay.
pub async fn has_transaction_pooler(database: &Database) -> Result<bool, PostgresFault> {
    let (one, other) = (database.get().await?, database.get().await?);
    let found = answer(LOOKING_FOR_POOLER, changes_backend(&one, &other)).await;
    if !matches!(found, Ok(false)) {
        // A transaction may be open, or an answer outstanding.
        drop((Object::take(one), Object::take(other)));
    }
    found
}

async fn changes_backend(one: &Client, other: &Client) -> Result<bool, Error> {
    for one_ends_first in [true, false] {
        let backend = begin(one).await?;
        match time::timeout(BEGINS_WITHIN, begin(other)).await {
            Ok(begun) => _ = begun?,
            // Both are connected, and one waits for the other.
            Err(_) => return Ok(true),
        }
        let (first, last) = if one_ends_first { (one, other) } else { (other, one) };
        first.batch_execute("ROLLBACK").await?;
        last.batch_execute("ROLLBACK").await?;
        let again = begin(one).await?;
        one.batch_execute("ROLLBACK").await?;
        if again != backend {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn begin(client: &Client) -> Result<i32, Error> {
    client.batch_execute(&exec::begin("READ ONLY", exec::SHORT_IDLE)).await?;
    Ok(client.query_typed_one("SELECT pg_backend_pid()", &[]).await?.get(0))
}

/// Whether a statement prepared in one transaction still exists in the next one, which has another connection to the server.
/// In PgBouncer before 1.21 it does not. Call it only if a pooler was detected.
pub(crate) async fn keeps_prepared_statements(database: &Database) -> Result<bool, PostgresFault> {
    let (one, other) = (database.get().await?, database.get().await?);
    // The other connection occupies the server process on which the statement was prepared.
    let survives = async {
        begin(&one).await?;
        let statement = one.prepare("SELECT 1").await?;
        one.batch_execute("ROLLBACK").await?;
        begin(&other).await?;
        for is_other_busy in [true, false] {
            begin(&one).await?;
            one.query(&statement, &[]).await?;
            one.batch_execute("ROLLBACK").await?;
            if is_other_busy {
                other.batch_execute("ROLLBACK").await?;
            }
        }
        Ok::<(), Error>(())
    };
    // Any error means that the statement does not exist elsewhere.
    let kept = answer(LOOKING_FOR_POOLER, async { Ok(survives.await.is_ok()) }).await?;
    drop((Object::take(one), Object::take(other)));
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    fn explained(ending: &Ending, message: &str) -> String {
        ending.explain(unavailable("testing", message)).message
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_session_explains_one_fault() {
        let ending = Ending::default();
        assert_eq!(explained(&ending, CLOSED), CLOSED);
        ending.note("timeout (SQLSTATE 25P03)".to_owned());
        assert_eq!(explained(&ending, "disk full"), "disk full", "a fault with its own error");
        assert_eq!(
            explained(&ending, CLOSED),
            "the server ended one of this relay's sessions: timeout (SQLSTATE 25P03)"
        );
        assert_eq!(explained(&ending, CLOSED), CLOSED, "it is explained once");
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_end_of_a_session_explains_nothing() {
        let ending = Ending::default();
        ending.note("timeout (SQLSTATE 25P03)".to_owned());
        advance(RECENT + Duration::from_millis(1)).await;
        assert_eq!(explained(&ending, CLOSED), CLOSED);
    }
}
