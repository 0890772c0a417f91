//! Connections to PostgreSQL.

use std::time::Duration;

use anyhow::Context;
use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime};
use pg_outbox::PostgresError;
use thiserror::Error;
use tokio_postgres::{Config, NoTls};

/// A request that gets no connection within this time is answered with 503.
const CONNECTION_WITHIN: Duration = Duration::from_secs(2);
/// A statement that takes longer has lost its connection, and its outcome is unknown.
const STATEMENT_TIMEOUT: &str = "-c statement_timeout=10s -c idle_in_transaction_session_timeout=10s";

/// Connects on first use, so that a process can start before its database.
pub fn pool(url: &str, connections: usize) -> anyhow::Result<Pool> {
    let mut config: Config = url.parse().context("parsing the database URL")?;
    config.options(STATEMENT_TIMEOUT);
    let manager =
        Manager::from_config(config, NoTls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
    let pool = Pool::builder(manager)
        .max_size(connections)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(CONNECTION_WITHIN))
        .create_timeout(Some(CONNECTION_WITHIN))
        .build()?;
    Ok(pool)
}

/// The reason why there is no connection. Without the DETAIL of PostgreSQL, which may contain a row.
#[derive(Debug, Error)]
#[error("no connection to the database: {0}")]
pub struct NoConnection(String);

impl From<PoolError> for NoConnection {
    fn from(error: PoolError) -> NoConnection {
        NoConnection(match error {
            PoolError::Backend(error) => PostgresError::from(error).to_string(),
            other => other.to_string(),
        })
    }
}

pub async fn connection(pool: &Pool) -> Result<Object, NoConnection> {
    Ok(pool.get().await?)
}
