//! Connections that use the scratch outbox as applications do: they insert, and hold a snapshot.

use super::load::Shape;
use deadpool_postgres::Object;
use outbox_relay::postgres::connection::connect::Database;
use outbox_relay::postgres::connection::fault::fault;
use outbox_relay::postgres::table::TableName;
use outbox_relay::relay::failure::PostgresFault;
use tokio_postgres::Statement;
use tokio_postgres::types::{ToSql, Type};

/// A writer of one stream: see [`super::load`].
pub struct Writer {
    client: Object,
    sql: String,
    /// `None` behind a pooler that does not support prepared statements.
    statement: Option<Statement>,
    stream: i64,
    streams: i64,
    /// The number of rows that it has committed.
    written: i64,
}

impl Writer {
    /// Connects the writer of stream `stream` of `streams`.
    ///
    /// # Errors
    ///
    /// If the server fails.
    pub async fn open(
        database: &Database,
        table: &TableName,
        shape: &Shape,
        (stream, streams): (u64, u64),
    ) -> Result<Writer, PostgresFault> {
        let client = database.get().await?;
        let sql = shape.insert(table);
        let statement = match database.prepares() {
            true => Some(client.prepare(&sql).await.map_err(|error| fault("preparing an insert", error))?),
            false => None,
        };
        Ok(Writer { client, sql, statement, stream: stream as i64, streams: streams as i64, written: 0 })
    }

    /// Inserts its next rows in one transaction. Returns when they are committed.
    ///
    /// # Errors
    ///
    /// If the server fails. It is then unknown whether the rows are committed.
    pub async fn write(&mut self, rows: u64) -> Result<(), PostgresFault> {
        let (first, last) = (self.written, self.written + rows as i64 - 1);
        let numbers: [&(dyn ToSql + Sync); 4] = [&first, &last, &self.stream, &self.streams];
        let inserted = match &self.statement {
            Some(statement) => self.client.execute(statement, &numbers).await,
            None => {
                let typed = numbers.map(|number| (number, Type::INT8));
                self.client.execute_typed(&self.sql, &typed).await
            }
        };
        inserted.map_err(|error| fault("inserting events", error))?;
        self.written += rows as i64;
        Ok(())
    }

    /// The number of rows that it has committed.
    pub fn written(&self) -> u64 {
        self.written as u64
    }
}

/// A transaction that keeps its snapshot, as a backup or a report does. Vacuum cannot remove rows that die after it.
pub struct Snapshot(Option<Object>);

impl Snapshot {
    /// Takes the snapshot.
    ///
    /// # Errors
    ///
    /// If the server fails.
    pub async fn take(database: &Database) -> Result<Snapshot, PostgresFault> {
        const SQL: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
                           SET LOCAL idle_in_transaction_session_timeout = 0;
                           SELECT 1";
        let client = database.get().await?;
        let taken = client.batch_execute(SQL).await.map_err(|error| fault("taking a snapshot", error));
        let snapshot = Snapshot(Some(client));
        taken.map(|()| snapshot)
    }

    /// Releases the snapshot.
    ///
    /// # Errors
    ///
    /// If the server has already ended the transaction, so that the measurement is invalid.
    pub async fn end(mut self) -> Result<(), PostgresFault> {
        let Some(client) = self.0.take() else { return Ok(()) };
        let ended = client.batch_execute("SELECT 1; COMMIT").await;
        if ended.is_err() {
            drop(Object::take(client));
        }
        ended.map_err(|error| fault("ending a held snapshot", error))
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // Not returned to the pool with its open transaction.
        self.0.take().map(Object::take);
    }
}
