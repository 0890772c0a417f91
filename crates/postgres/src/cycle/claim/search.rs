//! The read of a flow: the rows that are new since the claim's last read, in a snapshot of its own.
//!
//! While nothing is held, blocked or paused and no row is large, a cheap statement is used. Otherwise, a read that probably finds
//! nothing begins with a peek. Both check in their own snapshot what they assume, so a wrong guess costs only another statement.

use crate::connection::fault::answer;
use crate::cycle::claim::transaction::ClaimTransaction;
use crate::cycle::event::{OutboxRow, column};
use crate::cycle::statements::{Query, Statements};
use futures_util::TryStreamExt;
use relay::event::{Event, Payload};
use relay::failure::PostgresFault;
use relay::lanes::Lane;
use relay::outbox::{Search, SearchResult};
use std::pin::pin;
use tokio_postgres::Error;
use tokio_postgres::types::ToSql;

const DOING: &str = "reading new events";
/// The column of the peek that says whether there is something to read.
const HAS_ROWS: usize = 2;

/// Gaps are close if the lowest is at most this far below the highest id. The cheap read passes the rows in between again.
const CLOSE: i64 = 256;

/// Appends the new rows of `lanes` to `rows`, by id.
pub(crate) async fn read(
    transaction: &ClaimTransaction<'_>,
    statements: &Statements,
    lanes: &[Lane],
    search: &Search,
    rows: &mut Vec<OutboxRow>,
) -> Result<SearchResult, PostgresFault> {
    let low = search.gaps.first().map_or(search.above, |gap| gap - 1);
    if search.expects_free && search.above.saturating_sub(low) <= CLOSE {
        let query = &statements.read_new_if_free;
        let before = rows.len();
        if let Some(found) =
            read_with(transaction, query, statements, lanes, (search, Some(low)), rows).await?
        {
            return Ok(found);
        }
        rows.truncate(before);
    } else if !search.expects_rows
        && let Some(none) = peek(transaction, statements, search).await?
    {
        return Ok(none);
    }
    let query = &statements.read_new;
    let found = read_with(transaction, query, statements, lanes, (search, None), rows).await?;
    Ok(found.unwrap_or_default())
}

/// What the read would return if there is nothing to read, else `None`.
async fn peek(
    transaction: &ClaimTransaction<'_>,
    statements: &Statements,
    search: &Search,
) -> Result<Option<SearchResult>, PostgresFault> {
    let statement = answer(DOING, transaction.prepare_cached(&statements.peek)).await?;
    let values: [&(dyn ToSql + Sync); 3] = [&search.above, &search.gaps, &search.excepted];
    let row = answer(DOING, transaction.client().query_one(&statement, &values)).await?;
    let (hold_version, epoch) = (row.get(column::HOLD_VERSION), row.get::<_, i64>(column::EPOCH).into());
    let has_rows: bool = row.get(HAS_ROWS);
    Ok((!has_rows).then(|| SearchResult { hold_version, epoch, ..SearchResult::default() }))
}

/// Runs one of the reads: the cheap one, if there is an id below the first gap. Returns `None` if the cheap one does not
/// apply, because something is held, blocked or paused, or a row is large.
async fn read_with(
    transaction: &ClaimTransaction<'_>,
    query: &Query,
    statements: &Statements,
    lanes: &[Lane],
    (search, low): (&Search, Option<i64>),
    rows: &mut Vec<OutboxRow>,
) -> Result<Option<SearchResult>, PostgresFault> {
    let statement = answer(DOING, transaction.prepare_cached(query)).await?;
    let lanes: Vec<i16> = lanes.iter().map(|lane| lane.number()).collect();
    let (rows_max, epoch) = (search.rows_max as i64, search.epoch.number());
    let mut values: Vec<&(dyn ToSql + Sync)> = vec![
        &search.above,
        &search.gaps,
        &search.hold_version,
        &epoch,
        &statements.record_bytes_max,
        &rows_max,
        &lanes,
        &search.excepted,
    ];
    values.extend(low.as_ref().map(|low| low as &(dyn ToSql + Sync)));
    let stream = async {
        let stream = transaction.client().query_raw(&statement, values).await?;
        found(stream, search, low.is_some(), rows).await
    };
    answer(DOING, stream).await
}

async fn found(
    stream: tokio_postgres::RowStream,
    search: &Search,
    is_cheap: bool,
    rows: &mut Vec<OutboxRow>,
) -> Result<Option<SearchResult>, Error> {
    let mut found = SearchResult::default();
    let (mut bytes, mut returned) = (0, 0);
    let mut stream = pin!(stream);
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
            if is_cheap && matches!(row.payload(), Payload::TooLarge { .. }) {
                return Ok(None);
            }
            bytes += row.size();
            rows.push(row);
        }
    }
    found.cut |= returned >= search.rows_max;
    Ok(Some(found))
}
