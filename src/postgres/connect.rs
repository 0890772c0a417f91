//! Connections to Postgres, held by a pool.
//!
//! The pool hands a connection out without asking the server first (`RecyclingMethod::Fast`): every transaction of the
//! relay finds a broken connection out by itself, loses nothing by it, and would otherwise pay a round trip each time.
//! Secrets and certificates are read again at every connect, so that rotated ones are taken up.

use super::fault::{fault, unavailable};
use super::tls;
use crate::config;
use crate::relay::failure::{Fault, FaultKind};
use crate::relay::stats::Stats;
use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime};
use postgres_openssl::MakeTlsConnector;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

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
    settings: config::Postgres,
    latest: Latest,
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
        let connect = Connect { latest: latest.clone(), stats };
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        // `Connect` uses the latest settings; the ones given here are never used.
        let manager = Manager::from_connect(tokio_postgres::Config::new(), connect, recycling);
        let pool = Pool::builder(manager)
            .max_size(connections)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(POOL_WAIT))
            .create_timeout(Some(CONNECT_TIMEOUTS * settings.connect_timeout.unwrap_or(CONNECT_TIMEOUT)))
            .build()
            .map_err(|error| unavailable(CONNECTING, error.to_string()))?;
        Ok(Database { settings: settings.clone(), latest, pool })
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
            PoolError::Backend(error) => Fault { kind: FaultKind::Unavailable, ..fault(CONNECTING, error) },
            other => unavailable(CONNECTING, other.to_string()),
        })
    }

    /// Whether statements may be prepared.
    pub fn prepares(&self) -> bool {
        self.settings.prepared_statements
    }

    fn read_settings(&self) -> Result<(), Fault> {
        let unusable = |error: &dyn std::error::Error| unavailable(CONNECTING, chain(error));
        let mut connection = self.settings.connection().map_err(|error| unusable(&error))?;
        if connection.config.get_connect_timeout().is_none() {
            connection.config.connect_timeout(CONNECT_TIMEOUT);
        }
        let tls = tls::connector(&connection.tls).map_err(|error| unusable(&error))?;
        *self.latest.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((connection.config, tls));
        Ok(())
    }
}

static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Tells one connection of this process from another, by the moment when it was made.
pub(super) fn serial(connection: &Object) -> u64 {
    let created = Object::metrics(connection).created;
    created.saturating_duration_since(*BEGUN).as_nanos() as u64
}

/// What the next connect uses.
#[derive(Clone, Default)]
struct Latest(Arc<Mutex<Option<(tokio_postgres::Config, MakeTlsConnector)>>>);

struct Connect {
    latest: Latest,
    stats: Arc<Stats>,
}

type Connected = Result<(tokio_postgres::Client, JoinHandle<()>), tokio_postgres::Error>;

impl deadpool_postgres::Connect for Connect {
    fn connect(&self, _: &tokio_postgres::Config) -> Pin<Box<dyn Future<Output = Connected> + Send + '_>> {
        let latest = self.latest.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(async move {
            let Some((config, tls)) = latest else { unreachable!("Database::get reads the settings first") };
            let (client, connection) = config.connect(tls).await?;
            self.stats.postgres_connections.inc();
            Ok((client, tokio::spawn(async { _ = connection.await })))
        })
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
