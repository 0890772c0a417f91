//! The read of a claim, in slices of one snapshot.
//!
//! A portal of a prepared statement, or, behind a pooler that keeps no prepared statements, an SQL cursor: both belong
//! to the transaction, both see the snapshot of the moment they were opened, which is after the lanes were locked.

use super::fault::answer;
use super::statements::Statements;
use crate::relay::failure::Fault;
use crate::relay::lane::Lane;
use crate::relay::outbox::Read;
use deadpool_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Portal, RowStream};

/// An open read.
pub(super) enum Reading {
    Portal(Portal),
    Cursor,
}

impl Reading {
    pub(super) async fn open(
        transaction: &Transaction<'_>,
        statements: &Statements,
        prepares: bool,
        lanes: &[Lane],
        read: &Read,
    ) -> Result<Reading, Fault> {
        const DOING: &str = "reading events";
        let numbers: Vec<i16> = lanes.iter().map(|lane| lane.number()).collect();
        let rows_max = read.rows_max as i64;
        let shares: Vec<i64> = read.shares.iter().map(|rows| *rows as i64).collect();
        let record_max = statements.record_bytes_max;
        let mut params: Vec<(&(dyn ToSql + Sync), Type)> = vec![
            (&numbers, Type::INT2_ARRAY),
            (&read.lows, Type::INT8_ARRAY),
            (&read.hold_version, Type::INT8),
            (&rows_max, Type::INT8),
            (&record_max, Type::INT4),
            (&shares, Type::INT8_ARRAY),
        ];
        let sql = match &read.first_of_key_of {
            None => &statements.read,
            Some(row) => {
                params.push((row, Type::INT8));
                &statements.read_first
            }
        };
        if prepares {
            let statement = answer(DOING, transaction.prepare_cached(sql)).await?;
            let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
            return Ok(Reading::Portal(answer(DOING, transaction.bind(&statement, &params)).await?));
        }
        let declare = format!("DECLARE claim NO SCROLL CURSOR FOR {sql}");
        answer(DOING, transaction.execute_typed(&declare, &params)).await?;
        Ok(Reading::Cursor)
    }

    pub(super) async fn slice(
        &self,
        transaction: &Transaction<'_>,
        rows_max: usize,
    ) -> Result<RowStream, tokio_postgres::Error> {
        match self {
            Reading::Portal(portal) => transaction.query_portal_raw(portal, rows_max as i32).await,
            Reading::Cursor => {
                let fetch = format!("FETCH {rows_max} FROM claim");
                transaction.query_typed_raw(&fetch, std::iter::empty::<(&i32, Type)>()).await
            }
        }
    }

    /// Lets go of the snapshot.
    pub(super) async fn close(self, transaction: &Transaction<'_>) -> Result<(), tokio_postgres::Error> {
        match self {
            Reading::Portal(portal) => drop(portal), // sends Close, and waits for nothing
            Reading::Cursor => transaction.batch_execute("CLOSE claim").await?,
        }
        Ok(())
    }

    /// Whether there is nothing behind a slice: a portal says so, a cursor gives fewer rows than asked for.
    pub(super) fn is_exhausted(&self, completed: Option<u64>, rows: usize, rows_max: usize) -> bool {
        match self {
            Reading::Portal(_) => completed.is_some(),
            Reading::Cursor => rows < rows_max,
        }
    }
}
