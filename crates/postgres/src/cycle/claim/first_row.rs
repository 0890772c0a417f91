//! Reads the first row of a lane without its large values, and checks whether the whole row can be read.

use crate::connection::fault::{answer, fault};
use crate::cycle::claim::reading::Values;
use crate::cycle::claim::transaction::ClaimTransaction;
use crate::cycle::event::{OutboxRow, column};
use crate::cycle::statements::Statements;
use relay::event::Event;
use relay::failure::{FaultKind, PostgresFault};
use relay::outbox::{Head, ReadRequest, RowSelection, Wanted};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

const DOING: &str = "checking an event that may be unreadable";

/// Reads the first row in the transaction of the claim. A savepoint keeps the claim if the server cannot read the row. It
/// creates no multixact, because no rows are locked or written after it.
pub(crate) async fn read(
    transaction: &ClaimTransaction<'_>,
    statements: &Statements,
    prepares: bool,
    read: &ReadRequest,
) -> Result<Head<OutboxRow>, PostgresFault> {
    let reader = HeadReader { transaction, prepares };
    let values = Values::new(statements, read);
    let rows = reader.rows(&statements.read_head, &values.pending()).await?;
    let Some(row) = rows.into_iter().next() else {
        return Ok(Head { hold_version: -1, epoch: read.epoch, row: None, error: None });
    };
    let first = || -> Result<_, tokio_postgres::Error> {
        let versions = (row.try_get(column::HOLD_VERSION)?, row.try_get::<_, i64>(column::EPOCH)?.into());
        let is_there = row.try_get::<_, Option<i64>>(column::ID)?.is_some();
        Ok((versions, if is_there { Some(OutboxRow::new(row)?) } else { None }))
    };
    let ((hold_version, epoch), row) = first().map_err(|error| fault(DOING, error))?;
    let error = match &row {
        Some(row) => reader.read_error(statements, read, row.id()).await?,
        None => None,
    };
    Ok(Head { hold_version, epoch, row, error })
}

struct HeadReader<'a, 'b> {
    transaction: &'a ClaimTransaction<'b>,
    prepares: bool,
}

impl HeadReader<'_, '_> {
    /// The server's error when it reads the whole row, if the data is the cause.
    async fn read_error(
        &self,
        statements: &Statements,
        read: &ReadRequest,
        id: i64,
    ) -> Result<Option<String>, PostgresFault> {
        let wanted = read.wanted.iter().map(|wanted| Wanted { low: i64::MIN, row: Some(id), ..*wanted });
        let this = ReadRequest { rows: RowSelection::Named, wanted: wanted.collect(), ..read.clone() };
        let values = Values::new(statements, &this);
        self.run("SAVEPOINT whole").await?;
        let whole = self.rows(&statements.read_row, &values.typed()).await;
        let error = match whole {
            Ok(_) => None,
            Err(fault) if fault.kind == FaultKind::Data => Some(fault.message),
            Err(fault) => return Err(fault),
        };
        self.run("ROLLBACK TO SAVEPOINT whole; RELEASE SAVEPOINT whole").await?;
        Ok(error)
    }

    async fn run(&self, sql: &str) -> Result<(), PostgresFault> {
        answer(DOING, self.transaction.client().batch_execute(sql)).await
    }

    async fn rows(
        &self,
        sql: &str,
        values: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, PostgresFault> {
        if !self.prepares {
            return answer(DOING, self.transaction.client().query_typed(sql, values)).await;
        }
        let statement = answer(DOING, self.transaction.prepare_cached(sql)).await?;
        let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|(value, _)| *value).collect();
        answer(DOING, self.transaction.client().query(&statement, &values)).await
    }
}
