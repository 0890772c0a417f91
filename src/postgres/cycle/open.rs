//! The transaction of a claim.

use deadpool_postgres::{Object, Transaction};
use futures_util::FutureExt;
use tokio_postgres::{Client, Error, Statement};

/// An open transaction. It rolls back when it is dropped.
pub(crate) enum Open<'a> {
    /// The client library's own, which alone can read a portal.
    Guarded(Transaction<'a>),
    /// Begun in one piece with its first statements.
    Plain(Plain<'a>),
}

impl Open<'_> {
    pub(crate) fn client(&self) -> &Client {
        match self {
            Open::Guarded(transaction) => transaction.client(),
            Open::Plain(plain) => plain.connection,
        }
    }

    pub(crate) async fn prepare_cached(&self, sql: &str) -> Result<Statement, Error> {
        match self {
            Open::Guarded(transaction) => transaction.prepare_cached(sql).await,
            Open::Plain(plain) => plain.connection.prepare_cached(sql).await,
        }
    }

    pub(crate) async fn commit(self) -> Result<(), Error> {
        match self {
            Open::Guarded(transaction) => transaction.commit().await,
            Open::Plain(plain) => plain.end("COMMIT").await,
        }
    }

    pub(crate) async fn roll_back(self) -> Result<(), Error> {
        match self {
            Open::Guarded(transaction) => transaction.rollback().await,
            Open::Plain(plain) => plain.end("ROLLBACK").await,
        }
    }
}

/// A transaction that is begun by hand.
pub(crate) struct Plain<'a> {
    connection: &'a Object,
    ended: bool,
}

impl<'a> Plain<'a> {
    /// Whoever has this may begin.
    pub(crate) fn new(connection: &'a Object) -> Plain<'a> {
        Plain { connection, ended: false }
    }

    async fn end(mut self, how: &str) -> Result<(), Error> {
        self.ended = true;
        self.connection.batch_execute(how).await
    }

    /// The server has answered to a COMMIT or ROLLBACK that was sent along with something else.
    pub(crate) fn has_ended(mut self) {
        self.ended = true;
    }
}

impl Drop for Plain<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // A request is sent when it is first polled; nobody waits for the answer.
            _ = self.connection.batch_execute("ROLLBACK").now_or_never();
        }
    }
}
