//! The read of a claim, in slices of one snapshot.
//!
//! A backlog is read through a portal of a prepared statement, or through an SQL cursor if prepared statements are off. Both
//! belong to the transaction, and keep the snapshot that was taken when they were opened, after the lanes were locked. A few
//! rows are read at once, which saves a round trip.

use crate::connection::fault::answer;
use crate::cycle::claim::transaction::ClaimTransaction;
use crate::cycle::statements::Statements;
use relay::failure::PostgresFault;
use relay::lanes::marks::Excepted;
use relay::outbox::{ReadRequest, RowSelection};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Portal, RowStream, Statement};

/// An open read.
pub(crate) enum Reading {
    Portal(Portal),
    Cursor,
    /// All rows at once.
    Whole(RowStream),
}

/// The parameters of a read.
pub(crate) struct Values<'a> {
    read: &'a ReadRequest,
    lanes: Vec<i16>,
    lows: Vec<i64>,
    epoch: i64,
    rows_max: i64,
    shares: Vec<i64>,
    record_bytes_max: i32,
    /// The ids of the rows that the read names.
    named: Vec<i64>,
}

impl<'a> Values<'a> {
    pub(crate) fn new(statements: &Statements, read: &'a ReadRequest) -> Values<'a> {
        let wanted = || read.wanted.iter();
        Values {
            read,
            lanes: wanted().map(|wanted| wanted.lane.number()).collect(),
            lows: wanted().map(|wanted| wanted.low).collect(),
            epoch: read.epoch.number(),
            rows_max: read.rows_max as i64,
            shares: wanted().map(|wanted| wanted.share as i64).collect(),
            record_bytes_max: statements.record_bytes_max,
            named: wanted().filter_map(|wanted| wanted.row).collect(),
        }
    }

    /// The parameters that select pending rows, without the limits.
    pub(crate) fn pending(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        self.typed().into_iter().take(3).chain(excepted(&self.read.excepted)).collect()
    }

    pub(crate) fn typed(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        let mut values: Vec<(&(dyn ToSql + Sync), Type)> = vec![
            (&self.lanes, Type::INT2_ARRAY),
            (&self.lows, Type::INT8_ARRAY),
            (&self.epoch, Type::INT8),
            (&self.rows_max, Type::INT8),
            (&self.record_bytes_max, Type::INT4),
            (&self.shares, Type::INT8_ARRAY),
        ];
        match self.read.rows {
            RowSelection::Pending => values.extend(excepted(&self.read.excepted)),
            _ => values.push((&self.named, Type::INT8_ARRAY)),
        }
        values
    }

    fn untyped(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.typed().into_iter().map(|(value, _)| value).collect()
    }
}

/// The parameters that tell a read of pending rows which transactions the marks except.
pub(crate) fn excepted(excepted: &Excepted) -> [(&(dyn ToSql + Sync), Type); 2] {
    [(&excepted.xids, Type::INT8_ARRAY), (&excepted.floor, Type::INT8)]
}

/// The statement for this read.
pub(crate) fn sql<'a>(statements: &'a Statements, read: &ReadRequest) -> &'a str {
    match read.rows {
        RowSelection::Pending => &statements.read,
        RowSelection::FirstOfKeys => &statements.read_first,
        RowSelection::Named => &statements.read_row,
    }
}

impl Reading {
    /// Requests all rows at once. Sends the text of the statement if it is not prepared.
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
        transaction: &ClaimTransaction<'_>,
        statements: &Statements,
        prepares: bool,
        read: &ReadRequest,
    ) -> Result<Reading, PostgresFault> {
        const DOING: &str = "reading events";
        let values = Values::new(statements, read);
        let sql = sql(statements, read);
        let prepared =
            if prepares { Some(answer(DOING, transaction.prepare_cached(sql)).await?) } else { None };
        match (transaction, prepared) {
            (ClaimTransaction::Library(transaction), Some(statement)) => {
                let values = values.untyped();
                answer(DOING, transaction.bind(&statement, &values)).await.map(Reading::Portal)
            }
            (ClaimTransaction::Library(transaction), None) => {
                let declare = format!("DECLARE claim NO SCROLL CURSOR FOR {sql}");
                answer(DOING, transaction.execute_typed(&declare, &values.typed())).await?;
                Ok(Reading::Cursor)
            }
            (ClaimTransaction::Manual(_), prepared) => {
                answer(DOING, Reading::whole(transaction.client(), prepared.as_ref(), sql, &values)).await
            }
        }
    }

    /// The next rows, and the rest of the read. Returns all rows if they were requested at once.
    pub(crate) async fn slice(
        self,
        transaction: &ClaimTransaction<'_>,
        rows_max: usize,
    ) -> Result<(RowStream, Option<Reading>), tokio_postgres::Error> {
        match (self, transaction) {
            (Reading::Whole(rows), _) => Ok((rows, None)),
            (Reading::Portal(portal), ClaimTransaction::Library(transaction)) => {
                let rows = transaction.query_portal_raw(&portal, rows_max as i32).await?;
                Ok((rows, Some(Reading::Portal(portal))))
            }
            (Reading::Portal(_), ClaimTransaction::Manual(_)) => {
                unreachable!("a portal needs the library's transaction")
            }
            (Reading::Cursor, transaction) => {
                let fetch = format!("FETCH {rows_max} FROM claim");
                let none = std::iter::empty::<(&i32, Type)>();
                Ok((transaction.client().query_typed_raw(&fetch, none).await?, Some(Reading::Cursor)))
            }
        }
    }

    /// Releases the snapshot.
    pub(crate) async fn close(self, transaction: &ClaimTransaction<'_>) -> Result<(), tokio_postgres::Error> {
        match self {
            Reading::Portal(portal) => drop(portal), // sends Close without waiting
            Reading::Cursor => transaction.client().batch_execute("CLOSE claim").await?,
            Reading::Whole(rows) => drop(rows),
        }
        Ok(())
    }

    /// Whether this slice was the last one. A portal reports that. A cursor returns fewer rows than requested.
    pub(crate) fn is_exhausted(&self, completed: Option<u64>, rows: usize, rows_max: usize) -> bool {
        match self {
            Reading::Portal(_) => completed.is_some(),
            Reading::Cursor => rows < rows_max,
            Reading::Whole(_) => true,
        }
    }
}
