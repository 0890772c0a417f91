//! Begins the transaction of a claim and locks its lanes.

use crate::connection::fault::{answer, fault};
use crate::cycle::claim::reading::{self, Reading, Values};
use crate::cycle::claim::transaction::{ClaimTransaction, ManualTransaction};
use crate::cycle::statements::Statements;
use deadpool_postgres::Object;
use futures_util::join;
use relay::failure::PostgresFault;
use relay::lanes::Lane;
use relay::outbox::{ReadRequest, ServerId};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, IsolationLevel, Row, Statement};

pub(crate) const LOCKING: &str = "claiming lanes";

/// Begins the transaction and locks the lanes.
pub(crate) struct Locking<'a> {
    pub(crate) statements: &'a Statements,
    pub(crate) begin: &'a str,
    pub(crate) settings: &'a str,
    pub(crate) prepares: bool,
    pub(crate) lanes: &'a [Lane],
}

impl Locking<'_> {
    /// Call it after BEGIN and its settings were sent: preparing resolves names and locks the relation. Does not wait if the
    /// statement is prepared already.
    async fn prepare(
        &self,
        transaction: &ClaimTransaction<'_>,
        sql: &str,
    ) -> Result<Option<Statement>, Error> {
        if self.prepares { transaction.prepare_cached(sql).await.map(Some) } else { Ok(None) }
    }

    async fn query(&self, client: &Client, prepared: Option<&Statement>) -> Result<Vec<Row>, Error> {
        let numbers: Vec<i16> = self.lanes.iter().map(|lane| lane.number()).collect();
        match prepared {
            Some(statement) => client.query(statement, &[&numbers]).await,
            None => client.query_typed(&self.statements.lock, &[(&numbers, Type::INT2_ARRAY)]).await,
        }
    }

    pub(crate) async fn lock<'b>(
        &self,
        connection: &'b mut Object,
    ) -> Result<(ClaimTransaction<'b>, Vec<Row>), PostgresFault> {
        let begin =
            connection.build_transaction().isolation_level(IsolationLevel::ReadCommitted).read_only(false);
        let transaction = ClaimTransaction::Library(answer(LOCKING, begin.start()).await?);
        let set = transaction.client().batch_execute(self.settings);
        let rows = async {
            let lock = self.prepare(&transaction, &self.statements.lock).await?;
            self.query(transaction.client(), lock.as_ref()).await
        };
        let (set, rows) = answer(LOCKING, async { Ok(join!(set, rows)) }).await?;
        let rows = set.and(rows).map_err(|error| fault(LOCKING, error))?;
        Ok((transaction, rows))
    }

    /// Locks and reads in one round trip, if the statements are prepared. The server runs the statements in the order in which
    /// they are first polled, so the read's snapshot is still taken after the locks.
    pub(crate) async fn lock_and_read<'b>(
        &self,
        connection: &'b Object,
        read: &ReadRequest,
    ) -> Result<(ClaimTransaction<'b>, Vec<Row>, Reading), PostgresFault> {
        let sql = reading::sql(self.statements, read);
        let values = Values::new(self.statements, read);
        let transaction = ClaimTransaction::Manual(ManualTransaction::new(connection));
        let begun = connection.batch_execute(self.begin);
        let locked = async {
            // Prepare both first, or the read could be sent before the lock.
            let lock = self.prepare(&transaction, &self.statements.lock).await?;
            let prepared = self.prepare(&transaction, sql).await?;
            let rows = self.query(connection, lock.as_ref());
            let reading = Reading::whole(connection, prepared.as_ref(), sql, &values);
            let (rows, reading) = join!(rows, reading);
            rows.and_then(|rows| reading.map(|reading| (rows, reading)))
        };
        let (begun, locked) = answer(LOCKING, async { Ok(join!(begun, locked)) }).await?;
        let (rows, reading) = begun.and(locked).map_err(|error| fault(LOCKING, error))?;
        Ok((transaction, rows, reading))
    }
}

/// The locked lanes, in the requested order, and the server.
pub(crate) fn owned(lanes: &[Lane], connection: u64, rows: &[Row]) -> Result<(Vec<Lane>, ServerId), Error> {
    let mut locked = Vec::with_capacity(rows.len());
    let mut server = ServerId { connection, started_us: 0, backend: 0 };
    for row in rows {
        locked.extend(Lane::new(row.try_get::<_, i16>(0)?.into()));
        server = ServerId { connection, started_us: row.try_get(1)?, backend: row.try_get(2)? };
    }
    Ok((lanes.iter().copied().filter(|lane| locked.contains(lane)).collect(), server))
}
