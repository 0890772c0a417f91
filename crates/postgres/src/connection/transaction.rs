//! Transactions of one statement in one round trip: BEGIN with the relay's settings, the statement, COMMIT. And transactions
//! of several statements.
//!
//! BEGIN is needed even for one statement: the role's search path must not apply to it, the role's default may be read-only,
//! and only SET LOCAL leaves nothing behind on a connection that a pooler shares. A statement is prepared inside the
//! transaction too. The server resolves names and locks tables at that time.

use crate::connection::connect::Database;
use crate::connection::fault::{answer, fault};
use crate::connection::session::{
    FIRST, PLAIN_NAMES, begin, check_settings, look_settings, operator_settings, plain_settings,
    reaper_settings, settings_since,
};
use deadpool_postgres::Object;
use futures_util::{FutureExt, join};
use relay::failure::PostgresFault;
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, IsolationLevel, Row, Transaction};

/// Rolls back a transaction whose BEGIN and COMMIT the relay sends itself, unless it has ended.
pub(crate) struct OpenTransaction<'a> {
    client: &'a Client,
    ended: bool,
}

impl<'a> OpenTransaction<'a> {
    /// Create it before BEGIN is sent, so that every failure rolls back.
    pub(crate) fn new(client: &'a Client) -> OpenTransaction<'a> {
        OpenTransaction { client, ended: false }
    }

    /// If `how` fails, the transaction may still be open, so it is rolled back.
    pub(crate) async fn end(mut self, how: &str) -> Result<(), Error> {
        self.ended = true;
        let done = self.client.batch_execute(how).await;
        self.ended = done.is_ok();
        done
    }

    /// Notes that a COMMIT is sent together with another statement.
    pub(crate) fn has_ended(mut self) {
        self.ended = true;
    }
}

impl Drop for OpenTransaction<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // The first poll sends the request. The answer does not matter.
            _ = self.client.batch_execute("ROLLBACK").now_or_never();
        }
    }
}

/// Runs queries on this connection in a READ ONLY transaction.
pub(crate) async fn examine<T, E: From<Error>>(
    client: &Client,
    queries: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let transaction = OpenTransaction::new(client);
    client.batch_execute(&begin("READ ONLY", &check_settings())).await?;
    let examined = queries.await;
    let ended = transaction.end("ROLLBACK").await;
    let examined = examined?;
    ended?;
    Ok(examined)
}

/// Opens a transaction of the client library.
pub async fn open<'a>(
    client: &'a mut Client,
    read_only: bool,
    settings: &str,
) -> Result<Transaction<'a>, Error> {
    // Explicit, because the defaults of the role may differ. After a lock, other transactions must be visible.
    let begin = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
    let transaction = begin.read_only(read_only).start().await?;
    transaction.batch_execute(&format!("{FIRST}; {settings}")).await?;
    Ok(transaction)
}

/// Parameters with their types, so that the statement need not be prepared.
pub(crate) type Params<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

/// The place of a statement in a transaction that several share.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Begins the transaction.
    First,
    Next,
    /// Ends it.
    Last,
}

/// Runs transactions of one statement.
pub struct ShortTransaction {
    database: Database,
    access: &'static str,
    settings: String,
}

impl ShortTransaction {
    /// For statements that only read.
    pub fn reading(database: Database) -> ShortTransaction {
        ShortTransaction::new(database, "READ ONLY", &format!("{}; {PLAIN_NAMES}", plain_settings()))
    }

    /// The same, with another timeout of the server for each statement.
    pub(crate) fn reading_within(database: Database, limit: Duration) -> ShortTransaction {
        let limit = limit.as_millis();
        let settings = format!("{}; {PLAIN_NAMES}; SET LOCAL statement_timeout = {limit}", plain_settings());
        ShortTransaction::new(database, "READ ONLY", &settings)
    }

    /// For statements that write.
    pub(crate) fn writing(database: Database) -> ShortTransaction {
        ShortTransaction::new(database, "READ WRITE", &plain_settings())
    }

    /// For statements whose commit waits for the server's disk, but for no standby.
    pub fn recording(database: Database) -> ShortTransaction {
        let settings = format!("{}; SET LOCAL synchronous_commit = local", plain_settings());
        ShortTransaction::new(database, "READ WRITE", &settings)
    }

    /// For looks for new rows.
    pub(crate) fn looking(database: Database) -> ShortTransaction {
        ShortTransaction::new(database, "READ WRITE", &look_settings())
    }

    /// For the reaper.
    pub(crate) fn reaping(database: Database) -> ShortTransaction {
        ShortTransaction::new(database, "READ WRITE", &reaper_settings())
    }

    /// For operator actions.
    pub(crate) fn operating(database: Database) -> ShortTransaction {
        ShortTransaction::new(database, "READ WRITE", &operator_settings())
    }

    fn new(database: Database, access: &'static str, settings: &str) -> ShortTransaction {
        ShortTransaction { database, access, settings: settings.to_owned() }
    }

    /// Runs a statement on a connection of the pool.
    pub(crate) async fn query(
        &self,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, PostgresFault> {
        let connection = self.connect().await?;
        self.query_on(connection, doing, sql, params).await.1
    }

    /// Takes a connection from the pool.
    pub(crate) async fn connect(&self) -> Result<Object, PostgresFault> {
        self.database.get().await
    }

    /// Runs a statement on this connection. Returns the connection if it can still be used.
    pub(crate) async fn query_on(
        &self,
        connection: Object,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> (Option<Object>, Result<Vec<Row>, PostgresFault>) {
        let rows = self.run(&connection, doing, sql, params).await;
        usable(connection, rows)
    }

    /// Runs a statement of a transaction that several share. If it fails, the connection cannot be used any more.
    pub(crate) async fn query_as(
        &self,
        connection: &Object,
        place: Place,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, PostgresFault> {
        let begin = async {
            match place {
                Place::First => connection.batch_execute(&self.begin()).await,
                Place::Next | Place::Last => Ok(()),
            }
        };
        let end = async {
            match place {
                Place::Last => connection.batch_execute("COMMIT").await,
                Place::First | Place::Next => Ok(()),
            }
        };
        let query = async {
            let (rows, ended) = if self.database.prepares() {
                // Prepare first, or COMMIT would be sent before the statement.
                let statement = connection.prepare_cached(&prepared_text(sql)).await?;
                let values = values(params);
                join!(connection.query(&statement, &values), end)
            } else {
                join!(connection.query_typed(sql, params), end)
            };
            rows.and_then(|rows| ended.map(|()| rows))
        };
        let (begun, rows) = answer(doing, async { Ok(join!(begin, query)) }).await?;
        begun.and(rows).map_err(|error| fault(doing, error))
    }

    fn begin(&self) -> String {
        self.database.count_transaction();
        let since = settings_since(self.database.server_version_num());
        begin(self.access, &(since + &self.settings))
    }

    async fn run(
        &self,
        connection: &Object,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, PostgresFault> {
        let begin = self.begin();
        let begin = connection.batch_execute(&begin);
        let query = async {
            if self.database.prepares() {
                query_and_commit(connection, sql, params).await
            } else {
                let query = connection.query_typed(sql, params);
                let (rows, committed) = join!(query, connection.batch_execute("COMMIT"));
                rows.and_then(|rows| committed.map(|()| rows))
            }
        };
        let (begun, rows) = answer(doing, async { Ok(join!(begin, query)) }).await?;
        begun.and(rows).map_err(|error| fault(doing, error))
    }
}

/// When a table last changed under a prepared statement, in seconds since 1970; 0 if none has.
static TABLE_CHANGED: AtomicU64 = AtomicU64::new(0);

/// Notes that a table has changed under a prepared statement.
pub(crate) fn note_changed_table() {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    TABLE_CHANGED.store(since.as_secs(), Ordering::Relaxed);
}

/// The text to prepare. A pooler such as PgBouncer keeps the statements of its own connections by their text, even if their
/// plans are stale and the client reconnects. A comment makes it prepare them again.
pub(crate) fn prepared_text(sql: &str) -> Cow<'_, str> {
    match TABLE_CHANGED.load(Ordering::Relaxed) {
        0 => Cow::Borrowed(sql),
        at => Cow::Owned(format!("{sql} /* {at} */")),
    }
}

/// Runs a prepared statement and COMMIT. Requests are sent in the order in which they are first polled, and a statement that
/// is prepared already is found without waiting. So the first poll sends everything, after the BEGIN that was polled before.
async fn query_and_commit(connection: &Object, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Error> {
    let transaction = OpenTransaction::new(connection);
    let statement = match connection.prepare_cached(&prepared_text(sql)).await {
        Ok(statement) => statement,
        Err(error) => return transaction.end("ROLLBACK").await.and(Err(error)),
    };
    transaction.has_ended();
    let values = values(params);
    let (rows, committed) = join!(connection.query(&statement, &values), connection.batch_execute("COMMIT"));
    rows.and_then(|rows| committed.map(|()| rows))
}

fn values<'a>(params: Params<'a>) -> Vec<&'a (dyn ToSql + Sync)> {
    params.iter().map(|(value, _)| *value).collect()
}

/// The connection, if it can still be used. After other errors, an answer may still be outstanding. A statement timeout is the
/// server's own, so the server has answered everything.
fn usable(
    connection: Object,
    rows: Result<Vec<Row>, PostgresFault>,
) -> (Option<Object>, Result<Vec<Row>, PostgresFault>) {
    match &rows {
        Err(fault) if !fault.kind.keeps_connection() => {
            drop(Object::take(connection));
            (None, rows)
        }
        _ => (Some(connection), rows),
    }
}
