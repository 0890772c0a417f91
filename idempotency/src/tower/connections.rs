use std::future::Future;

#[cfg(feature = "deadpool-postgres")]
use pg_outbox::__private::drivers::deadpool_postgres::{Client, Pool};
use pg_outbox::OutboxClient;

use super::BoxError;

/// A pool that provides the layer's connections: one before the handler, and one after it if the layer stores the response or
/// releases the key. No connection is held while the handler runs. Set a `statement_timeout` for its connections: the layer sets
/// no limit for the statement that locks the key, and none for the one that stores the response.
///
/// It is implemented for the pools of deadpool-postgres and sqlx. An sqlx pool needs the `after_release` that
/// [`OutboxTransaction`](pg_outbox::OutboxTransaction) shows. Without it, the statement that locks the key may run in an open
/// transaction of an earlier user of the connection, and is not committed. With sea-orm, use the pool that
/// `DatabaseConnection::get_postgres_connection_pool` returns. Implement the trait for other pools, for example for one of
/// diesel-async:
///
/// ```
/// # #[cfg(feature = "diesel-async-09")] mod example {
/// use diesel_async::AsyncPgConnection;
/// use pg_outbox::OutboxClient;
/// use pg_idempotency::tower::Connections;
///
/// #[derive(Clone)]
/// struct Database {
///     url: String, // a real one would contain a pool
/// }
///
/// impl Connections for Database {
///     type Connection = AsyncPgConnection;
///
///     async fn get(&self) -> Result<AsyncPgConnection, Box<dyn std::error::Error + Send + Sync>> {
///         use diesel_async::AsyncConnection;
///         Ok(AsyncPgConnection::establish(&self.url).await?)
///     }
///
///     fn client(connection: &mut AsyncPgConnection) -> impl OutboxClient {
///         connection
///     }
/// }
/// # }
/// ```
pub trait Connections: Clone + Send + Sync + 'static {
    /// A connection of the pool, or the pool itself.
    type Connection: Send + 'static;

    /// Waits for a connection. Limit the time, for example with `wait_timeout` and `create_timeout` of deadpool, because the
    /// client waits too. If the future is dropped, nothing has been locked.
    fn get(&self) -> impl Future<Output = Result<Self::Connection, BoxError>> + Send;

    /// The connection as the driver's client.
    fn client(connection: &mut Self::Connection) -> impl OutboxClient;
}

#[cfg(feature = "deadpool-postgres")]
impl Connections for Pool {
    type Connection = Client;

    async fn get(&self) -> Result<Client, BoxError> {
        Ok(Pool::get(self).await?)
    }

    fn client(connection: &mut Client) -> impl OutboxClient {
        &*connection
    }
}

/// The pool of each version of sqlx.
#[allow(unused_macros)] // without sqlx
macro_rules! sqlx {
    ($sqlx:ident) => {
        impl Connections for pg_outbox::__private::drivers::$sqlx::PgPool {
            type Connection = pg_outbox::__private::drivers::$sqlx::pool::PoolConnection<
                pg_outbox::__private::drivers::$sqlx::Postgres,
            >;

            async fn get(&self) -> Result<Self::Connection, BoxError> {
                Ok(self.acquire().await?)
            }

            fn client(connection: &mut Self::Connection) -> impl OutboxClient {
                &mut **connection
            }
        }
    };
}

#[cfg(feature = "sqlx-08")]
sqlx!(sqlx_08);
#[cfg(feature = "sqlx-09")]
sqlx!(sqlx_09);
