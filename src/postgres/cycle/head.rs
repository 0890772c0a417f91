//! The first row of a lane, looked at without its contents, and whether it can be read whole.

use crate::postgres::connection::fault::{answer, fault};
use crate::postgres::cycle::event::{OutboxRow, column};
use crate::postgres::cycle::open::Open;
use crate::postgres::cycle::reading::Values;
use crate::postgres::cycle::statements::Statements;
use crate::relay::event::Event;
use crate::relay::failure::{Fault, FaultKind};
use crate::relay::lane::Lane;
use crate::relay::outbox::{Head, ReadRequest, Rows};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

const DOING: &str = "looking at an event that cannot be read";

/// Looks at it in the transaction of the claim. A savepoint keeps the claim when the server refuses. It costs no multixact,
/// since nothing is locked or written behind it.
pub(crate) async fn look(
    open: &Open<'_>,
    statements: &Statements,
    prepares: bool,
    lanes: &[Lane],
    read: &ReadRequest,
) -> Result<Head<OutboxRow>, Fault> {
    let asking = Asking { open, prepares };
    let values = Values::new(statements, lanes, read);
    let rows = asking.rows(&statements.read_head, &values.pending()).await?;
    let Some(row) = rows.into_iter().next() else {
        return Ok(Head { hold_version: -1, basis: read.basis, row: None, refusal: None });
    };
    let first = || -> Result<_, tokio_postgres::Error> {
        let versions = (row.try_get(column::HOLD_VERSION)?, row.try_get(column::BASIS)?);
        let is_there = row.try_get::<_, Option<i64>>(column::ID)?.is_some();
        Ok((versions, if is_there { Some(OutboxRow::new(row)?) } else { None }))
    };
    let ((hold_version, basis), row) = first().map_err(|error| fault(DOING, error))?;
    let refusal = match &row {
        Some(row) => asking.refusal(statements, lanes, read, row.id()).await?,
        None => None,
    };
    Ok(Head { hold_version, basis, row, refusal })
}

struct Asking<'a, 'b> {
    open: &'a Open<'b>,
    prepares: bool,
}

impl Asking<'_, '_> {
    /// What the server says when this row is read whole, if it refuses that because of the data.
    async fn refusal(
        &self,
        statements: &Statements,
        lanes: &[Lane],
        read: &ReadRequest,
        id: i64,
    ) -> Result<Option<String>, Fault> {
        let witnesses = lanes.iter().map(|lane| (*lane, id)).collect();
        let this =
            ReadRequest { rows: Rows::These(witnesses), lows: vec![i64::MIN; lanes.len()], ..read.clone() };
        let values = Values::new(statements, lanes, &this);
        self.run("SAVEPOINT whole").await?;
        let whole = self.rows(&statements.read_row, &values.typed()).await;
        let refusal = match whole {
            Ok(_) => None,
            Err(fault) if fault.kind == FaultKind::Data => Some(fault.message),
            Err(fault) => return Err(fault),
        };
        self.run("ROLLBACK TO SAVEPOINT whole; RELEASE SAVEPOINT whole").await?;
        Ok(refusal)
    }

    async fn run(&self, sql: &str) -> Result<(), Fault> {
        answer(DOING, self.open.client().batch_execute(sql)).await
    }

    async fn rows(&self, sql: &str, values: &[(&(dyn ToSql + Sync), Type)]) -> Result<Vec<Row>, Fault> {
        if !self.prepares {
            return answer(DOING, self.open.client().query_typed(sql, values)).await;
        }
        let statement = answer(DOING, self.open.prepare_cached(sql)).await?;
        let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|(value, _)| *value).collect();
        answer(DOING, self.open.client().query(&statement, &values)).await
    }
}
