//! The reads of a claim.
//!
//! - A read of pending or named rows, in one snapshot that is taken after the lanes were locked. A backlog is read in slices
//!   through a portal of a prepared statement, which belongs to the transaction and keeps the snapshot. A few rows are read at once,
//!   which saves a round trip. So are all rows if prepared statements are off.
//! - The read of a flow: the rows that are new since the claim's last read, in a snapshot of its own.
//! - The read of the first row without its large values, to find out whether the whole row can be read.

use crate::connection::errors::{answer, fault};
use crate::connection::exec::{ClaimTransaction, Param};
use crate::cycle::row::{OutboxRow, column};
use crate::cycle::statements::Statements;
use futures_util::TryStreamExt;
use relay::failure::{FaultKind, PostgresFault};
use relay::lanes::Lane;
use relay::lanes::marks::Excepted;
use relay::outbox::{Event, Head, Payload, ReadRequest, RowSelection, Search, SearchResult, Wanted};
use std::pin::pin;
use tokio_postgres::{Error, Portal, RowStream};

pub(crate) const READING: &str = "reading events";
const READING_NEW: &str = "reading new events";
const CHECKING: &str = "checking an event that may be unreadable";

pub(crate) enum Reading {
    Portal(Portal),
    Whole(RowStream),
}

impl Reading {
    pub(crate) async fn open(
        transaction: &ClaimTransaction<'_>,
        statements: &Statements,
        read: &ReadRequest,
    ) -> Result<Reading, PostgresFault> {
        let values = Values::new(statements, read);
        let params = values.typed();
        let opened = async {
            let statement = transaction.ready(sql(statements, read)).await?;
            match transaction.bind(&statement, &params).await? {
                Some(portal) => Ok(Reading::Portal(portal)),
                None => statement.rows(transaction.client(), &params).await.map(Reading::Whole),
            }
        };
        answer(READING, opened).await
    }
}

pub(crate) fn sql<'a>(statements: &'a Statements, read: &ReadRequest) -> &'a str {
    match read.rows {
        RowSelection::Pending => &statements.queries.read,
        RowSelection::FirstOfKeys => &statements.queries.read_first,
        RowSelection::Named => &statements.queries.read_row,
    }
}

pub(crate) struct Values<'a> {
    read: &'a ReadRequest,
    lanes: Vec<i16>,
    lows: Vec<i64>,
    epoch: i64,
    rows_max: i64,
    shares: Vec<i64>,
    record_bytes_max: i32,
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
    fn pending(&self) -> Vec<Param<'_>> {
        self.typed().into_iter().take(3).chain(excepted(&self.read.excepted)).collect()
    }

    pub(crate) fn typed(&self) -> Vec<Param<'_>> {
        let mut values = Vec::from(params![
            self.lanes => INT2_ARRAY, self.lows => INT8_ARRAY, self.epoch => INT8, self.rows_max => INT8,
            self.record_bytes_max => INT4, self.shares => INT8_ARRAY
        ]);
        match self.read.rows {
            RowSelection::Pending => values.extend(excepted(&self.read.excepted)),
            _ => values.extend(params![self.named => INT8_ARRAY]),
        }
        values
    }
}

/// The parameters that tell a read of pending rows which transactions the marks except.
fn excepted(excepted: &Excepted) -> [Param<'_>; 2] {
    params![excepted.xids => INT8_ARRAY, excepted.floor => INT8]
}

/// The column of the peek that says whether there is something to read.
const HAS_ROWS: usize = 2;

/// Gaps are close if the lowest is at most this far below the highest id. The cheap read passes the rows in between again.
const CLOSE: i64 = 256;

/// The read of a flow.
///
/// While nothing is held, blocked or paused and no row is large, a cheap statement is used. Otherwise, a read that probably finds
/// nothing begins with a peek. Both check in their own snapshot what they assume, so a wrong guess costs only another statement.
pub(crate) struct NewRows<'a> {
    pub(crate) transaction: &'a ClaimTransaction<'a>,
    pub(crate) statements: &'a Statements,
    pub(crate) lanes: &'a [Lane],
    pub(crate) search: &'a Search,
}

impl NewRows<'_> {
    /// Appends the new rows of the lanes to `rows`, by id.
    pub(crate) async fn read(&self, rows: &mut Vec<OutboxRow>) -> Result<SearchResult, PostgresFault> {
        let NewRows { search, statements, .. } = self;
        let low = search.gaps.first().map_or(search.above, |gap| gap - 1);
        if search.expects_free && search.above.saturating_sub(low) <= CLOSE {
            let before = rows.len();
            if let Some(found) = self.run(&statements.queries.read_new_if_free, Some(low), rows).await? {
                return Ok(found);
            }
            rows.truncate(before);
        } else if !search.expects_rows
            && let Some(none) = self.peek().await?
        {
            return Ok(none);
        }
        Ok(self.run(&statements.queries.read_new, None, rows).await?.unwrap_or_default())
    }

    /// What the read would return if there is nothing to read, else `None`.
    async fn peek(&self) -> Result<Option<SearchResult>, PostgresFault> {
        let Search { above, gaps, excepted, .. } = self.search;
        let params = params![*above => INT8, *gaps => INT8_ARRAY, *excepted => INT8_ARRAY];
        let rows = self.transaction.query(READING_NEW, &self.statements.queries.peek, &params).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (hold_version, epoch) = (row.get(column::HOLD_VERSION), row.get::<_, i64>(column::EPOCH).into());
        let has_rows: bool = row.get(HAS_ROWS);
        Ok((!has_rows).then(|| SearchResult { hold_version, epoch, ..SearchResult::default() }))
    }

    /// Runs one of the reads: the cheap one, if there is an id below the first gap. Returns `None` if the cheap one does not
    /// apply, because something is held, blocked or paused, or a row is large.
    async fn run(
        &self,
        query: &str,
        low: Option<i64>,
        rows: &mut Vec<OutboxRow>,
    ) -> Result<Option<SearchResult>, PostgresFault> {
        let search = self.search;
        let lanes: Vec<i16> = self.lanes.iter().map(|lane| lane.number()).collect();
        let (rows_max, epoch) = (search.rows_max as i64, search.epoch.number());
        let mut params = Vec::from(params![
            search.above => INT8, search.gaps => INT8_ARRAY, search.hold_version => INT8, epoch => INT8,
            self.statements.record_bytes_max => INT4, rows_max => INT8, lanes => INT2_ARRAY,
            search.excepted => INT8_ARRAY
        ]);
        params.extend(low.iter().flat_map(|low| params![*low => INT8]));
        let found = async {
            let statement = self.transaction.ready(query).await?;
            let mut stream = pin!(statement.rows(self.transaction.client(), &params).await?);
            let mut found = SearchResult::default();
            let (mut bytes, mut returned) = (0, 0);
            while let Some(row) = stream.try_next().await? {
                let Some(hold_version) = row.try_get(column::HOLD_VERSION)? else { return Ok(None) };
                found.hold_version = hold_version;
                found.epoch = row.try_get::<_, i64>(column::EPOCH)?.into();
                let Some(id) = row.try_get(column::ID)? else { continue };
                returned += 1;
                found.cut |= bytes >= search.bytes_max && bytes > 0;
                if found.cut {
                    continue;
                }
                found.ids.push(id);
                if row.try_get::<_, Option<i16>>(column::LANE)?.is_some() {
                    let row = OutboxRow::new(row)?;
                    if low.is_some() && matches!(row.payload(), Payload::TooLarge { .. }) {
                        return Ok(None);
                    }
                    bytes += row.size();
                    rows.push(row);
                }
            }
            found.cut |= returned >= search.rows_max;
            Ok(Some(found))
        };
        answer(READING_NEW, found).await
    }
}

/// Reads the first row. A savepoint keeps the claim if the server cannot read the whole row. It creates no multixact, because no
/// rows are locked or written after it.
pub(crate) async fn head(
    transaction: &ClaimTransaction<'_>,
    statements: &Statements,
    read: &ReadRequest,
) -> Result<Head<OutboxRow>, PostgresFault> {
    let values = Values::new(statements, read);
    let rows = transaction.query(CHECKING, &statements.queries.read_head, &values.pending()).await?;
    let Some(row) = rows.into_iter().next() else {
        return Ok(Head { hold_version: -1, epoch: read.epoch, row: None, error: None });
    };
    let first = || -> Result<_, Error> {
        let versions = (row.try_get(column::HOLD_VERSION)?, row.try_get::<_, i64>(column::EPOCH)?.into());
        let is_there = row.try_get::<_, Option<i64>>(column::ID)?.is_some();
        Ok((versions, if is_there { Some(OutboxRow::new(row)?) } else { None }))
    };
    let ((hold_version, epoch), row) = first().map_err(|error| fault(CHECKING, error))?;
    let Some(row) = row else { return Ok(Head { hold_version, epoch, row: None, error: None }) };
    let wanted = read.wanted.iter().map(|wanted| Wanted { low: i64::MIN, row: Some(row.id()), ..*wanted });
    let whole = ReadRequest { rows: RowSelection::Named, wanted: wanted.collect(), ..read.clone() };
    let values = Values::new(statements, &whole);
    transaction.run(CHECKING, "SAVEPOINT whole").await?;
    let error = match transaction.query(CHECKING, &statements.queries.read_row, &values.typed()).await {
        Ok(_) => None,
        Err(fault) if fault.kind == FaultKind::Data => Some(fault.message),
        Err(fault) => return Err(fault),
    };
    transaction.run(CHECKING, "ROLLBACK TO SAVEPOINT whole; RELEASE SAVEPOINT whole").await?;
    Ok(Head { hold_version, epoch, row: Some(row), error })
}
