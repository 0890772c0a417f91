//! A transaction of one statement in one round trip: BEGIN with the relay's settings, the statement, COMMIT.
//!
//! BEGIN is needed even for one statement: a role's default may be read-only, and only SET LOCAL leaves nothing behind on a
//! connection that a pooler shares.

use crate::postgres::connection::connect::Database;
use crate::postgres::connection::fault::{answer, fault};
use crate::postgres::connection::session::{
    NO_TRANSACTION_TIMEOUT, operator_settings, plain_settings, reaper_settings,
};
use crate::relay::failure::Fault;
use deadpool_postgres::Object;
use futures_util::join;
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// Parameters with their types, so that the statement need not be prepared.
pub(crate) type Params<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

/// Runs transactions of one statement.
pub(crate) struct ShortTransaction {
    database: Database,
    begin: String,
    /// For servers that have `transaction_timeout`.
    begin_unbounded: String,
    prepares: bool,
}

impl ShortTransaction {
    /// For statements that only read.
    pub(crate) fn reading(database: Database) -> ShortTransaction {
        ShortTransaction::new(database, "READ ONLY", &plain_settings())
    }

    /// The same, with another timeout of the server for each statement.
    pub(crate) fn reading_within(database: Database, limit: Duration) -> ShortTransaction {
        let settings = format!("{}; SET LOCAL statement_timeout = {}", plain_settings(), limit.as_millis());
        ShortTransaction::new(database, "READ ONLY", &settings)
    }

    /// For statements that write.
    pub(crate) fn writing(database: Database) -> ShortTransaction {
        ShortTransaction::new(database, "READ WRITE", &plain_settings())
    }

    /// For rare statements on a table that another session may have locked. The statements are not prepared, because the server
    /// would wait for the table before the transaction begins, and so without its `lock_timeout`. The commit waits for the
    /// server's disk, but for no standby.
    pub(crate) fn recording(database: Database) -> ShortTransaction {
        let settings = format!("{}; SET LOCAL synchronous_commit = local", plain_settings());
        ShortTransaction { prepares: false, ..ShortTransaction::new(database, "READ WRITE", &settings) }
    }

    /// For the reaper.
    pub(crate) fn reaping(database: Database) -> ShortTransaction {
        ShortTransaction::new(database, "READ WRITE", &reaper_settings())
    }

    /// For operator actions.
    pub(crate) fn operating(database: Database) -> ShortTransaction {
        ShortTransaction::new(database, "READ WRITE", &operator_settings())
    }

    fn new(database: Database, access: &str, settings: &str) -> ShortTransaction {
        let begin = |first: &str| format!("BEGIN ISOLATION LEVEL READ COMMITTED {access}; {first}{settings}");
        let (begin, begin_unbounded) = (begin(""), begin(NO_TRANSACTION_TIMEOUT));
        let prepares = database.prepares();
        ShortTransaction { database, begin, begin_unbounded, prepares }
    }

    /// Runs a statement on a connection of the pool.
    pub(crate) async fn query(
        &self,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Fault> {
        let connection = self.connect().await?;
        self.query_on(connection, doing, sql, params).await.1
    }

    /// Takes a connection from the pool.
    pub(crate) async fn connect(&self) -> Result<Object, Fault> {
        self.database.get().await
    }

    /// Runs a statement on this connection. Returns the connection if it can still be used.
    pub(crate) async fn query_on(
        &self,
        connection: Object,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> (Option<Object>, Result<Vec<Row>, Fault>) {
        let rows = self.run(&connection, doing, sql, params).await;
        usable(connection, rows)
    }

    /// Runs a CALL of a procedure that commits, and therefore cannot be part of a transaction. Returns the same as `query_on`.
    pub(crate) async fn call_on(
        &self,
        connection: Object,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> (Option<Object>, Result<Vec<Row>, Fault>) {
        self.database.count_transaction();
        let rows = self.call(&connection, doing, sql, params).await;
        usable(connection, rows)
    }

    async fn call(
        &self,
        connection: &Object,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Fault> {
        if !self.database.prepares() {
            return answer(doing, connection.query_typed(sql, params)).await;
        }
        let statement = answer(doing, connection.prepare_cached(sql)).await?;
        let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
        answer(doing, connection.query(&statement, &values)).await
    }

    async fn run(
        &self,
        connection: &Object,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Fault> {
        self.database.count_transaction();
        let unbounded = self.database.has_transaction_timeout();
        let begin = connection.batch_execute(if unbounded { &self.begin_unbounded } else { &self.begin });
        let commit = connection.batch_execute("COMMIT");
        let (begun, rows, committed) = if self.prepares {
            let statement = answer(doing, connection.prepare_cached(sql)).await?;
            let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
            let query = connection.query(&statement, &values);
            answer(doing, async { Ok(join!(begin, query, commit)) }).await?
        } else {
            let query = connection.query_typed(sql, params);
            answer(doing, async { Ok(join!(begin, query, commit)) }).await?
        };
        begun.and(rows).and_then(|rows| committed.map(|()| rows)).map_err(|error| fault(doing, error))
    }
}

/// The connection, if it can still be used. After other errors, an answer may still be outstanding. A statement timeout is the
/// server's own, so the server has answered everything.
fn usable(connection: Object, rows: Result<Vec<Row>, Fault>) -> (Option<Object>, Result<Vec<Row>, Fault>) {
    match &rows {
        Err(fault) if !fault.kind.keeps_connection() => {
            drop(Object::take(connection));
            (None, rows)
        }
        _ => (Some(connection), rows),
    }
}
