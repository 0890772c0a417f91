//! Transactions: how they begin, their settings, and how statements are sent in them.
//!
//! BEGIN is needed even for one statement: the role's search path must not apply to it, the role's default may be read-only,
//! and only SET LOCAL leaves nothing behind on a connection that a pooler shares. A statement is prepared inside the
//! transaction too, unless prepared statements are off. The server resolves names and locks tables at that time.
//!
//! A transaction of one statement is one round trip: BEGIN with the relay's settings, the statement, COMMIT. Requests are sent in
//! the order in which they are first polled, and a statement that is prepared already is found without waiting. So the first poll
//! sends everything.

use crate::connection::errors::{STATEMENT_TIMEOUT, answer, fault, prepared_text};
use crate::connection::pool::Database;
use crate::sql::sql;
use deadpool_postgres::{Object, Transaction};
use futures_util::{FutureExt, TryStreamExt, join};
use relay::failure::PostgresFault;
use std::pin::pin;
use std::time::Duration;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, IsolationLevel, Portal, Row, RowStream, Statement};

/// A parameter with its type, so that the statement need not be prepared.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);
pub(crate) type Params<'a> = &'a [Param<'a>];

/// A statement that can be sent without waiting.
pub(crate) enum Ready<'a> {
    Prepared(Statement),
    /// Prepared statements are off.
    Text(&'a str),
}

impl Ready<'_> {
    /// Sends the statement. The rows arrive as they are read.
    pub(crate) async fn rows(&self, client: &Client, params: Params<'_>) -> Result<RowStream, Error> {
        match self {
            Ready::Prepared(statement) => client.query_raw(statement, values(params)).await,
            Ready::Text(sql) => client.query_typed_raw(sql, params.iter().cloned()).await,
        }
    }

    pub(crate) async fn query(&self, client: &Client, params: Params<'_>) -> Result<Vec<Row>, Error> {
        self.rows(client, params).await?.try_collect().await
    }

    /// Sends the statement, and returns how many rows it has changed.
    pub(crate) async fn execute(&self, client: &Client, params: Params<'_>) -> Result<u64, Error> {
        let mut rows = pin!(self.rows(client, params).await?);
        while rows.try_next().await?.is_some() {}
        Ok(rows.rows_affected().unwrap_or(0))
    }
}

fn values<'a>(params: Params<'a>) -> Vec<&'a (dyn ToSql + Sync)> {
    params.iter().map(|(value, _)| *value).collect()
}

/// The place of a statement in its transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Has a transaction of its own.
    Only,
    /// Begins a transaction that several share.
    First,
    Next,
    /// Ends it.
    Last,
}

/// How long the server keeps a transaction open for a client that is frozen or disconnected. Between BEGIN and COMMIT, it may
/// still have to wait for the answer to a statement that it prepares. The locks make a change of the table wait.
pub(crate) const SHORT_IDLE: &str = "SET LOCAL idle_in_transaction_session_timeout = 5000; ";

/// Runs transactions of one statement.
pub struct ShortTransaction {
    database: Database,
    access: &'static str,
    settings: String,
}

impl ShortTransaction {
    pub fn reading(database: Database) -> ShortTransaction {
        ShortTransaction::new(database, "READ ONLY", format!("{}; {PLAIN_NAMES}", plain_settings()))
    }

    /// The same, with another timeout of the server for each statement.
    pub(crate) fn reading_within(database: Database, limit: Duration) -> ShortTransaction {
        let limit = limit.as_millis();
        let settings = format!("{}; {PLAIN_NAMES}; SET LOCAL statement_timeout = {limit}", plain_settings());
        ShortTransaction::new(database, "READ ONLY", settings)
    }

    pub(crate) fn writing(database: Database) -> ShortTransaction {
        ShortTransaction::new(database, "READ WRITE", plain_settings())
    }

    /// For statements whose commit waits for the server's disk, but for no standby.
    pub fn recording(database: Database) -> ShortTransaction {
        let settings = format!("{}; SET LOCAL synchronous_commit = local", plain_settings());
        ShortTransaction::new(database, "READ WRITE", settings)
    }

    pub(crate) fn reaping(database: Database) -> ShortTransaction {
        ShortTransaction::new(database, "READ WRITE", reaper_settings())
    }

    pub(crate) fn operating(database: Database) -> ShortTransaction {
        ShortTransaction::new(database, "READ WRITE", operator_settings())
    }

    fn new(database: Database, access: &'static str, settings: String) -> ShortTransaction {
        ShortTransaction { database, access, settings }
    }

    pub(crate) async fn query(
        &self,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, PostgresFault> {
        let connection = self.connect().await?;
        let rows = self.query_on(&connection, Place::Only, doing, sql, params).await;
        if rows.as_ref().is_err_and(|fault| !fault.kind.keeps_connection()) {
            drop(Object::take(connection));
        }
        rows
    }

    pub(crate) async fn connect(&self) -> Result<Object, PostgresFault> {
        self.database.get().await
    }

    /// Runs a statement. If it fails, the connection cannot be used any more, because an answer may still be outstanding, unless the
    /// fault keeps the connection and the statement has a transaction of its own: after its own timeout, the server has answered
    /// everything.
    pub(crate) async fn query_on(
        &self,
        connection: &Object,
        place: Place,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, PostgresFault> {
        let begins = matches!(place, Place::Only | Place::First);
        let ends = matches!(place, Place::Only | Place::Last);
        let begin = async { if begins { connection.batch_execute(&self.begin()).await } else { Ok(()) } };
        let end = async { if ends { connection.batch_execute("COMMIT").await } else { Ok(()) } };
        let query = async {
            // Prepare first, or COMMIT would be sent before the statement.
            let transaction = (place == Place::Only).then(|| OpenTransaction::new(connection));
            let statement = match ready(connection, self.database.prepares(), sql).await {
                Ok(statement) => statement,
                Err(error) => match transaction {
                    Some(transaction) => return transaction.end("ROLLBACK").await.and(Err(error)),
                    None => return Err(error),
                },
            };
            transaction.into_iter().for_each(OpenTransaction::has_ended);
            let (rows, ended) = join!(statement.query(connection, params), end);
            rows.and_then(|rows| ended.map(|()| rows))
        };
        let (begun, rows) = answer(doing, async { Ok(join!(begin, query)) }).await?;
        begun.and(rows).map_err(|error| fault(doing, error))
    }

    fn begin(&self) -> String {
        self.database.count_transaction();
        let since = settings_since(self.database.server_version_num());
        begin(self.access, &format!("{since}{SHORT_IDLE}{}", self.settings))
    }
}

async fn ready<'a>(connection: &Object, prepares: bool, sql: &'a str) -> Result<Ready<'a>, Error> {
    if !prepares {
        return Ok(Ready::Text(sql));
    }
    connection.prepare_cached(&prepared_text(sql)).await.map(Ready::Prepared)
}

/// Rolls back a transaction whose BEGIN and COMMIT the relay sends itself, unless it has ended.
pub(crate) struct OpenTransaction<'a> {
    client: &'a Client,
    ended: bool,
}

impl<'a> OpenTransaction<'a> {
    /// Create it before BEGIN is sent, so that every failure rolls back.
    fn new(client: &'a Client) -> OpenTransaction<'a> {
        OpenTransaction { client, ended: false }
    }

    /// If `how` fails, the transaction may still be open, so it is rolled back.
    async fn end(mut self, how: &str) -> Result<(), Error> {
        self.ended = true;
        let done = self.client.batch_execute(how).await;
        self.ended = done.is_ok();
        done
    }

    /// Notes that a COMMIT is sent together with another statement.
    fn has_ended(mut self) {
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

/// The transaction of a claim. Dropping it rolls back.
pub(crate) enum ClaimTransaction<'a> {
    /// A transaction of the client library: only such a transaction can read from a portal.
    Library(Transaction<'a>),
    /// A transaction whose BEGIN was sent together with its first statements.
    Manual { connection: &'a Object, open: OpenTransaction<'a>, prepares: bool },
}

/// Commits, or fails if the transaction is aborted. The server would answer a COMMIT with success, although it rolls back. The
/// client library does not return the command tag that says so, but every other statement fails in such a transaction.
pub(crate) const COMMIT: &str = "SELECT; COMMIT";

impl<'a> ClaimTransaction<'a> {
    /// Begins a transaction whose statements are prepared and can be read in portions. Its settings have yet to be sent.
    pub(crate) async fn begin(connection: &'a mut Object) -> Result<ClaimTransaction<'a>, Error> {
        let begin = connection.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
        let transaction = begin.read_only(false).start().await?;
        Ok(ClaimTransaction::Library(transaction))
    }

    /// A transaction whose BEGIN the caller sends. Create it before, so that every failure rolls back.
    pub(crate) fn manual(connection: &'a Object, prepares: bool) -> ClaimTransaction<'a> {
        ClaimTransaction::Manual { connection, open: OpenTransaction::new(connection), prepares }
    }

    pub(crate) fn client(&self) -> &Client {
        match self {
            ClaimTransaction::Library(transaction) => transaction.client(),
            ClaimTransaction::Manual { connection, .. } => connection,
        }
    }

    pub(crate) async fn ready<'b>(&self, sql: &'b str) -> Result<Ready<'b>, Error> {
        match self {
            ClaimTransaction::Library(transaction) => {
                transaction.prepare_cached(&prepared_text(sql)).await.map(Ready::Prepared)
            }
            ClaimTransaction::Manual { connection, prepares, .. } => ready(connection, *prepares, sql).await,
        }
    }

    pub(crate) async fn query(
        &self,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, PostgresFault> {
        answer(doing, async { self.ready(sql).await?.query(self.client(), params).await }).await
    }

    pub(crate) async fn execute(
        &self,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<u64, PostgresFault> {
        answer(doing, async { self.ready(sql).await?.execute(self.client(), params).await }).await
    }

    pub(crate) async fn run(&self, doing: &'static str, sql: &str) -> Result<(), PostgresFault> {
        answer(doing, self.client().batch_execute(sql)).await
    }

    /// Opens a portal, which keeps the snapshot, unless the transaction cannot read it.
    pub(crate) async fn bind(&self, ready: &Ready<'_>, params: Params<'_>) -> Result<Option<Portal>, Error> {
        match (self, ready) {
            (ClaimTransaction::Library(transaction), Ready::Prepared(statement)) => {
                transaction.bind(statement, &values(params)).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    pub(crate) async fn next_rows(&self, portal: &Portal, rows_max: usize) -> Result<RowStream, Error> {
        let ClaimTransaction::Library(transaction) = self else { unreachable!("it has no portals") };
        transaction.query_portal_raw(portal, rows_max as i32).await
    }

    /// Whether the caller can send [`COMMIT`] together with a statement.
    pub(crate) fn commits_with_statement(&self) -> bool {
        matches!(self, ClaimTransaction::Manual { .. })
    }

    /// Notes that the server has answered a [`COMMIT`] that was sent together with a statement.
    pub(crate) fn has_ended(self) {
        if let ClaimTransaction::Manual { open, .. } = self {
            open.has_ended();
        }
    }

    pub(crate) async fn commit(self) -> Result<(), Error> {
        match self {
            ClaimTransaction::Library(transaction) => {
                transaction.batch_execute("SELECT").await?; // as in `COMMIT`
                transaction.commit().await
            }
            ClaimTransaction::Manual { open, .. } => open.end(COMMIT).await,
        }
    }

    pub(crate) async fn roll_back(self) -> Result<(), Error> {
        match self {
            ClaimTransaction::Library(transaction) => transaction.rollback().await,
            ClaimTransaction::Manual { open, .. } => open.end("ROLLBACK").await,
        }
    }
}

/// Runs queries on this connection in a READ ONLY transaction.
pub(crate) async fn examine<T, E: From<Error>>(
    client: &Client,
    queries: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let transaction = OpenTransaction::new(client);
    client.batch_execute(&begin("READ ONLY", &format!("{SHORT_IDLE}{}", check_settings()))).await?;
    let examined = queries.await;
    let ended = transaction.end("ROLLBACK").await;
    let examined = examined?;
    ended?;
    Ok(examined)
}

/// Opens a transaction of several statements, such as a migration.
pub async fn open<'a>(
    client: &'a mut Client,
    read_only: bool,
    settings: &str,
) -> Result<tokio_postgres::Transaction<'a>, Error> {
    // Explicit, because the defaults of the role may differ. After a lock, other transactions must be visible.
    let begin = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
    let transaction = begin.read_only(read_only).start().await?;
    transaction.batch_execute(&format!("{FIRST}; {SHORT_IDLE}{settings}")).await?;
    Ok(transaction)
}

/// The first statements of every transaction.
///
/// - The search path. Otherwise a role that may create functions or operators in a schema of the path could run code as this
///   role: an exact match in `public` is preferred to a match in `pg_catalog` that needs a cast.
/// - No JIT, because compiling a statement takes longer than running it. The penalty for a disabled path exceeds
///   `jit_above_cost`.
pub(crate) const FIRST: &str = "SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL jit = off";

/// The beginning of a script for psql or a migration tool. Outside of a transaction, SET LOCAL has no effect, and the block
/// sets the path for the session.
pub(crate) const FIXED_SEARCH_PATH: &str = concat!(sql!("migrate/search_path"), "\n");

/// Begins a transaction. `access` is `READ ONLY` or `READ WRITE`.
///
/// A standby refuses READ WRITE. By then the transaction is open, so that the server also refuses the statements that were
/// sent after this one.
pub(crate) fn begin(access: &str, settings: &str) -> String {
    format!("BEGIN ISOLATION LEVEL READ COMMITTED; {FIRST}; SET TRANSACTION {access}; {settings}")
}

/// The settings that not every server has. Without views, a statement that names a view or a foreign table fails. So nothing
/// that replaced a table of the outbox after it was checked can run code.
pub(crate) const NEWER_SETTINGS: &str = "\
    SELECT set_config(name, CASE name WHEN 'transaction_timeout' THEN '0' ELSE 'view, foreign-table' END, true) \
    FROM pg_settings WHERE name IN ('restrict_nonsystem_relation_kind', 'transaction_timeout')";

/// Without a query, for a server that has the setting.
const NO_VIEWS: &str = "SET LOCAL restrict_nonsystem_relation_kind = 'view, foreign-table'; ";

/// [`NEWER_SETTINGS`] without a query, by the version of the server: no `transaction_timeout` of the role, and no views. Each
/// version from 14 got the latter in a minor release.
pub(crate) fn settings_since(server_version_num: u32) -> String {
    let has_kinds = matches!(server_version_num, 140_013..150_000 | 150_008..160_000 | 160_004.. );
    let kinds = if has_kinds { NO_VIEWS } else { "" };
    let timeout = if server_version_num >= 170_000 { NO_TRANSACTION_TIMEOUT } else { "" };
    format!("{timeout}{kinds}")
}

/// `format_type`, `quote_ident` and the like return what the checks compare. With this setting of the role or the database, it
/// would be quoted.
pub(crate) const PLAIN_NAMES: &str = "SET LOCAL quote_all_identifiers = off";

pub fn check_settings() -> String {
    format!(
        "{PLAIN_NAMES}; SET LOCAL statement_timeout = {statement}; SET LOCAL lock_timeout = {lock}; {NEWER_SETTINGS}",
        statement = STATEMENT_TIMEOUT.as_millis(),
        lock = OPERATOR_LOCK_TIMEOUT.as_millis(),
    )
}

/// How long to wait for another session's row lock. Then the settlement skips the locked rows.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The settings of every transaction.
///
/// - `enable_...`: The planner must use the pending index. It would choose a sequential scan on a small or freshly analyzed
///   table, and keep that plan while the table grows.
/// - `force_generic_plan`: Prepared statements are planned once, not at every execution (PostgreSQL manual, "PREPARE").
/// - `row_security = off`: A policy that hides rows causes an error.
/// - `synchronous_commit = off`: If the server loses a settlement, its rows are sent again with the same event IDs.
pub fn plain_settings() -> String {
    format!(
        "SET LOCAL statement_timeout = {statement}; SET LOCAL lock_timeout = {lock}; \
         SET LOCAL synchronous_commit = off; SET LOCAL row_security = off; \
         SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; \
         SET LOCAL plan_cache_mode = force_generic_plan",
        statement = STATEMENT_TIMEOUT.as_millis(),
        lock = LOCK_TIMEOUT.as_millis(),
    )
}

/// How long the reaper waits for another session's lock. Then it skips the locked rows.
const REAPER_LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// The settings of the reaper, which finds rows by a range of pages.
pub fn reaper_settings() -> String {
    format!(
        "{plain}; SET LOCAL enable_tidscan = on; SET LOCAL lock_timeout = {lock}",
        plain = plain_settings(),
        lock = REAPER_LOCK_TIMEOUT.as_millis(),
    )
}

/// A `transaction_timeout` of the role or the database would close the connection of a slow sweep or a large batch, which
/// would look like an outage. Every statement of the relay has its own timeout.
const NO_TRANSACTION_TIMEOUT: &str = "SET LOCAL transaction_timeout = 0; ";

/// How long an operator's action waits for another session's row lock.
const OPERATOR_LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The settings of operator actions. They do not change `synchronous_commit`, because a confirmed action must not be lost.
pub(crate) fn operator_settings() -> String {
    format!(
        "SET LOCAL statement_timeout = {statement}; SET LOCAL lock_timeout = {lock}; SET LOCAL row_security = off; \
         SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; {NEWER_SETTINGS}; {PLAIN_NAMES}",
        statement = STATEMENT_TIMEOUT.as_millis(),
        lock = OPERATOR_LOCK_TIMEOUT.as_millis(),
    )
}

/// The settings of a claim. The server ends the claim if the relay is frozen, dead or disconnected: the idle timeout applies
/// while the server waits for the relay, `tcp_user_timeout` while it sends rows (PostgreSQL manual, "Client Connection
/// Defaults" and "Connections and Authentication").
pub(crate) fn claim_settings(takeover_timeout: Duration, server_version_num: u32) -> String {
    // Claims have their own limits. A default of the role would end slow ones.
    let since = settings_since(server_version_num);
    format!(
        "{since}SET LOCAL idle_in_transaction_session_timeout = {takeover}; SET LOCAL tcp_user_timeout = {takeover}; {plain}",
        takeover = takeover_timeout.as_millis(),
        plain = plain_settings(),
    )
}
