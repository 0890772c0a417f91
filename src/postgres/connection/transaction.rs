//! A transaction of one statement, sent in one piece: BEGIN with the relay's settings, the statement, COMMIT.
//!
//! Explicit even for a single statement, because a role's default may be read-only, and because only SET LOCAL leaves
//! nothing behind on a connection that a pooler shares.

use crate::postgres::connection::connect::Database;
use crate::postgres::connection::fault::{answer, fault};
use crate::postgres::connection::session::{
    NO_TRANSACTION_TIMEOUT, operator_settings, plain_settings, reaper_settings,
};
use crate::relay::failure::{Fault, FaultKind};
use deadpool_postgres::Object;
use futures_util::join;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// Values with their types, so that a statement need not be prepared.
pub(crate) type Params<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

/// How such transactions begin.
pub(crate) struct ShortTransaction {
    database: Database,
    begin: String,
    /// The same for a server that knows `transaction_timeout`.
    begin_unbounded: String,
}

impl ShortTransaction {
    /// For statements that change nothing.
    pub(crate) fn reading(database: Database) -> ShortTransaction {
        ShortTransaction::new(database, "READ ONLY", &plain_settings())
    }

    /// For statements that write.
    pub(crate) fn writing(database: Database) -> ShortTransaction {
        ShortTransaction::new(database, "READ WRITE", &plain_settings())
    }

    /// For what the reaper deletes.
    pub(crate) fn reaping(database: Database) -> ShortTransaction {
        ShortTransaction::new(database, "READ WRITE", &reaper_settings())
    }

    /// For what an operator does.
    pub(crate) fn operating(database: Database) -> ShortTransaction {
        ShortTransaction::new(database, "READ WRITE", &operator_settings())
    }

    fn new(database: Database, access: &str, settings: &str) -> ShortTransaction {
        let begin = |first: &str| format!("BEGIN ISOLATION LEVEL READ COMMITTED {access}; {first}{settings}");
        let (begin, begin_unbounded) = (begin(""), begin(NO_TRANSACTION_TIMEOUT));
        ShortTransaction { database, begin, begin_unbounded }
    }

    /// Runs one statement on a connection of the pool, and gives the connection back.
    pub(crate) async fn query(
        &self,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Fault> {
        let connection = self.connect().await?;
        self.query_on(connection, doing, sql, params).await.1
    }

    /// A connection of the pool.
    pub(crate) async fn connect(&self) -> Result<Object, Fault> {
        self.database.get().await
    }

    /// Runs one statement on this connection, and gives the connection back if it is still good.
    pub(crate) async fn query_on(
        &self,
        connection: Object,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> (Option<Object>, Result<Vec<Row>, Fault>) {
        let rows = self.run(&connection, doing, sql, params).await;
        match &rows {
            // An answer may still be on its way: nobody must get the connection.
            Err(fault) if fault.kind != FaultKind::Contended => {
                drop(Object::take(connection));
                (None, rows)
            }
            _ => (Some(connection), rows),
        }
    }

    async fn run(
        &self,
        connection: &Object,
        doing: &'static str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Fault> {
        self.database.count_transaction();
        let unbounded = self.database.knows_transaction_timeout();
        let begin = connection.batch_execute(if unbounded { &self.begin_unbounded } else { &self.begin });
        let commit = connection.batch_execute("COMMIT");
        let (begun, rows, committed) = if self.database.prepares() {
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
