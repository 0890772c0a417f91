//! The transaction of a claim. Dropping it rolls back.

use crate::connection::transaction::{OpenTransaction, prepared_text};
use deadpool_postgres::{Object, Transaction};
use tokio_postgres::{Client, Error, Statement};

/// The server answers the COMMIT of an aborted transaction with success, although it rolls back. The client library does not
/// return the command tag that says so, but every other statement fails in such a transaction.
const FAILS_IF_ABORTED: &str = "SELECT";

/// Commits, or fails if the transaction is aborted.
pub(crate) fn commit_sql() -> String {
    format!("{FAILS_IF_ABORTED}; COMMIT")
}

/// An open transaction.
pub(crate) enum ClaimTransaction<'a> {
    /// A transaction of the client library, which is needed to read a portal.
    Library(Transaction<'a>),
    /// A transaction whose BEGIN was sent together with its first statements.
    Manual(ManualTransaction<'a>),
}

impl ClaimTransaction<'_> {
    pub(crate) fn client(&self) -> &Client {
        match self {
            ClaimTransaction::Library(transaction) => transaction.client(),
            ClaimTransaction::Manual(manual) => manual.connection,
        }
    }

    pub(crate) async fn prepare_cached(&self, sql: &str) -> Result<Statement, Error> {
        let sql = prepared_text(sql);
        match self {
            ClaimTransaction::Library(transaction) => transaction.prepare_cached(&sql).await,
            ClaimTransaction::Manual(manual) => manual.connection.prepare_cached(&sql).await,
        }
    }

    pub(crate) async fn commit(self) -> Result<(), Error> {
        match self {
            ClaimTransaction::Library(transaction) => {
                transaction.batch_execute(FAILS_IF_ABORTED).await?;
                transaction.commit().await
            }
            ClaimTransaction::Manual(manual) => manual.open.end(&commit_sql()).await,
        }
    }

    pub(crate) async fn roll_back(self) -> Result<(), Error> {
        match self {
            ClaimTransaction::Library(transaction) => transaction.rollback().await,
            ClaimTransaction::Manual(manual) => manual.open.end("ROLLBACK").await,
        }
    }
}

/// A transaction whose BEGIN and COMMIT the relay sends itself.
pub(crate) struct ManualTransaction<'a> {
    connection: &'a Object,
    open: OpenTransaction<'a>,
}

impl<'a> ManualTransaction<'a> {
    /// Create it before BEGIN is sent, so that every failure rolls back.
    pub(crate) fn new(connection: &'a Object) -> ManualTransaction<'a> {
        ManualTransaction { connection, open: OpenTransaction::new(connection) }
    }

    /// Notes that the server has answered a COMMIT that was sent together with another statement.
    pub(crate) fn has_ended(self) {
        self.open.has_ended();
    }
}
