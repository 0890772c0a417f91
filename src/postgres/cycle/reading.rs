//! The read of a claim, in slices of one snapshot.
//!
//! Of a backlog by a portal of a prepared statement, or, behind a pooler that keeps no prepared statements, by an SQL
//! cursor: both belong to the transaction, both see the snapshot of the moment they were opened, which is after the lanes
//! were locked. A few rows come in one piece, which costs one round trip instead of two.

use crate::postgres::connection::fault::answer;
use crate::postgres::cycle::open::Open;
use crate::postgres::cycle::statements::Statements;
use crate::relay::failure::Fault;
use crate::relay::lane::Lane;
use crate::relay::outbox::{ReadRequest, Rows};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Portal, RowStream, Statement};

/// An open read.
pub(crate) enum Reading {
    Portal(Portal),
    Cursor,
    /// All rows, on their way already.
    Whole(RowStream),
}

/// The values of a read.
pub(crate) struct Values<'a> {
    read: &'a ReadRequest,
    lanes: Vec<i16>,
    rows_max: i64,
    shares: Vec<i64>,
    record_bytes_max: i32,
    /// The ids of the rows that the read names.
    witnesses: Vec<i64>,
}

impl<'a> Values<'a> {
    pub(crate) fn new(statements: &Statements, lanes: &[Lane], read: &'a ReadRequest) -> Values<'a> {
        let named = read.rows.named();
        let lanes: Vec<i16> = match read.rows {
            Rows::Pending => lanes.iter().map(|lane| lane.number()).collect(),
            Rows::FirstOfKeys(_) | Rows::These(_) => named.iter().map(|(lane, _)| lane.number()).collect(),
        };
        Values {
            read,
            lanes,
            rows_max: read.rows_max as i64,
            shares: read.shares.iter().map(|rows| *rows as i64).collect(),
            record_bytes_max: statements.record_bytes_max,
            witnesses: named.iter().map(|(_, id)| *id).collect(),
        }
    }

    /// Which rows are pending, without any limit.
    pub(crate) fn pending(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        self.typed().into_iter().take(3).collect()
    }

    pub(crate) fn typed(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        let mut values: Vec<(&(dyn ToSql + Sync), Type)> = vec![
            (&self.lanes, Type::INT2_ARRAY),
            (&self.read.lows, Type::INT8_ARRAY),
            (&self.read.basis, Type::INT8),
            (&self.rows_max, Type::INT8),
            (&self.record_bytes_max, Type::INT4),
            (&self.shares, Type::INT8_ARRAY),
        ];
        if self.read.rows != Rows::Pending {
            values.push((&self.witnesses, Type::INT8_ARRAY));
        }
        values
    }

    fn untyped(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.typed().into_iter().map(|(value, _)| value).collect()
    }
}

/// The statement for this read.
pub(crate) fn sql<'a>(statements: &'a Statements, read: &ReadRequest) -> &'a str {
    match read.rows {
        Rows::Pending => &statements.read,
        Rows::FirstOfKeys(_) => &statements.read_first,
        Rows::These(_) => &statements.read_row,
    }
}

impl Reading {
    /// The rows in one piece. Without a prepared statement the text of it is sent.
    pub(crate) async fn whole(
        client: &Client,
        prepared: Option<&Statement>,
        sql: &str,
        values: &Values<'_>,
    ) -> Result<Reading, tokio_postgres::Error> {
        let rows = match prepared {
            Some(statement) => client.query_raw(statement, values.untyped()).await?,
            None => client.query_typed_raw(sql, values.typed()).await?,
        };
        Ok(Reading::Whole(rows))
    }

    pub(crate) async fn open(
        open: &Open<'_>,
        statements: &Statements,
        prepares: bool,
        lanes: &[Lane],
        read: &ReadRequest,
    ) -> Result<Reading, Fault> {
        const DOING: &str = "reading events";
        let values = Values::new(statements, lanes, read);
        let sql = sql(statements, read);
        let prepared = if prepares { Some(answer(DOING, open.prepare_cached(sql)).await?) } else { None };
        match (open, prepared) {
            (Open::Guarded(transaction), Some(statement)) => {
                let values = values.untyped();
                answer(DOING, transaction.bind(&statement, &values)).await.map(Reading::Portal)
            }
            (Open::Guarded(transaction), None) => {
                let declare = format!("DECLARE claim NO SCROLL CURSOR FOR {sql}");
                answer(DOING, transaction.execute_typed(&declare, &values.typed())).await?;
                Ok(Reading::Cursor)
            }
            (Open::Plain(_), prepared) => {
                answer(DOING, Reading::whole(open.client(), prepared.as_ref(), sql, &values)).await
            }
        }
    }

    /// The next rows, and how to read on. Of a read in one piece that is all of them.
    pub(crate) async fn slice(
        self,
        open: &Open<'_>,
        rows_max: usize,
    ) -> Result<(RowStream, Option<Reading>), tokio_postgres::Error> {
        match (self, open) {
            (Reading::Whole(rows), _) => Ok((rows, None)),
            (Reading::Portal(portal), Open::Guarded(transaction)) => {
                let rows = transaction.query_portal_raw(&portal, rows_max as i32).await?;
                Ok((rows, Some(Reading::Portal(portal))))
            }
            (Reading::Portal(_), Open::Plain(_)) => unreachable!("a portal needs the library's transaction"),
            (Reading::Cursor, open) => {
                let fetch = format!("FETCH {rows_max} FROM claim");
                let none = std::iter::empty::<(&i32, Type)>();
                Ok((open.client().query_typed_raw(&fetch, none).await?, Some(Reading::Cursor)))
            }
        }
    }

    /// Lets go of the snapshot.
    pub(crate) async fn close(self, open: &Open<'_>) -> Result<(), tokio_postgres::Error> {
        match self {
            Reading::Portal(portal) => drop(portal), // sends Close, and waits for nothing
            Reading::Cursor => open.client().batch_execute("CLOSE claim").await?,
            Reading::Whole(rows) => drop(rows),
        }
        Ok(())
    }

    /// Whether there is nothing behind a slice: a portal says so, a cursor gives fewer rows than asked for.
    pub(crate) fn is_exhausted(&self, completed: Option<u64>, rows: usize, rows_max: usize) -> bool {
        match self {
            Reading::Portal(_) => completed.is_some(),
            Reading::Cursor => rows < rows_max,
            Reading::Whole(_) => true,
        }
    }
}
