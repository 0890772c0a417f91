//! The read of a flow: the rows that are new since the claim's last read, in a snapshot of its own.

use crate::postgres::connection::fault::answer;
use crate::postgres::cycle::event::{OutboxRow, column};
use crate::postgres::cycle::open::ClaimTransaction;
use crate::postgres::cycle::statements::Statements;
use crate::relay::event::Event;
use crate::relay::failure::Fault;
use crate::relay::lane::Lane;
use crate::relay::outbox::{Search, SearchResult};
use futures_util::TryStreamExt;
use std::pin::pin;
use tokio_postgres::Error;
use tokio_postgres::types::ToSql;

const DOING: &str = "reading new events";

/// Appends the new rows of `lanes` to `rows`, by id.
pub(crate) async fn read(
    transaction: &ClaimTransaction<'_>,
    statements: &Statements,
    lanes: &[Lane],
    search: &Search,
    rows: &mut Vec<OutboxRow>,
) -> Result<SearchResult, Fault> {
    let statement = answer(DOING, transaction.prepare_cached(&statements.read_new)).await?;
    let lanes: Vec<i16> = lanes.iter().map(|lane| lane.number()).collect();
    let rows_max = search.rows_max as i64;
    let values: [&(dyn ToSql + Sync); 7] = [
        &search.above,
        &search.gaps,
        &search.hold_version,
        &search.basis,
        &statements.record_bytes_max,
        &rows_max,
        &lanes,
    ];
    let stream = async {
        let stream = transaction.client().query_raw(&statement, values).await?;
        found(stream, search, rows).await
    };
    answer(DOING, stream).await
}

async fn found(
    stream: tokio_postgres::RowStream,
    search: &Search,
    rows: &mut Vec<OutboxRow>,
) -> Result<SearchResult, Error> {
    let mut found = SearchResult::default();
    let (mut bytes, mut returned) = (0, 0);
    let mut stream = pin!(stream);
    while let Some(row) = stream.try_next().await? {
        found.hold_version = row.try_get(column::HOLD_VERSION)?;
        found.basis = row.try_get(column::BASIS)?;
        let Some(id) = row.try_get(column::ID)? else { continue };
        returned += 1;
        found.cut |= bytes >= search.bytes_max && bytes > 0;
        if found.cut {
            continue;
        }
        found.ids.push(id);
        if row.try_get::<_, Option<i16>>(column::LANE)?.is_some() {
            let row = OutboxRow::new(row)?;
            bytes += row.size();
            rows.push(row);
        }
    }
    found.cut |= returned >= search.rows_max;
    Ok(found)
}
