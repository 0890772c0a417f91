//! Settling: records the outcome of a batch in the transaction of its claim, and commits.

use crate::connection::errors::{answer, fault};
use crate::connection::exec::{COMMIT, ClaimTransaction, Param, Ready};
use crate::cycle::row::{Ctid, OutboxRow};
use crate::cycle::statements::Statements;
use crate::options::OnSent;
use futures_util::join;
use relay::fail_point;
use relay::failure::{FaultKind, PostgresFault};
use relay::outbox::{Event, RejectedRow, Settled, Settlement, TopicHold};
use settings::text::counted;
use std::collections::HashSet;
use tokio_postgres::{Client, Error, Row};
use uuid::Uuid;

const DOING: &str = "settling a batch";
const SUPPRESSED: &str = "drop the trigger on the outbox that suppresses or undoes updates or deletes (`outbox-relay doctor` names it)";

/// Records the outcome with one statement per kind, and commits.
pub(crate) async fn settle(
    transaction: ClaimTransaction<'_>,
    statements: &Statements,
    settlement: &Settlement<'_, OutboxRow>,
) -> Result<Settled, PostgresFault> {
    let Settlement { sent, rejected, blocked, held, around_locks } = settlement;
    let only_sent = rejected.is_empty() && blocked.is_empty() && held.is_empty() && !around_locks;
    if only_sent && transaction.commits_with_statement() {
        return record_and_commit(transaction, statements, sent).await;
    }
    let (mut all_sent, mut recorded) = (true, None);
    if !sent.is_empty() {
        let rows = SentRows::new(statements, sent, *around_locks);
        let count = match around_locks {
            true => recorded.insert(record_around_locks(&transaction, &rows).await?).len(),
            false => rows.record(&transaction).await? as usize,
        };
        all_sent = count == sent.len();
    }
    let mut ids = HashSet::new();
    if !rejected.is_empty() {
        ids.extend(record_rejected(&transaction, &statements.queries.dead_letter, rejected).await?);
    }
    // Holds before blocks, because both lock the row of the version. Another relay that holds the same topic locks the topic first.
    if !held.is_empty() {
        hold(&transaction, &statements.queries.hold, held).await?;
    }
    if !blocked.is_empty() {
        ids.extend(record_rejected(&transaction, &statements.queries.block, blocked).await?);
    }
    fail_point::reach("before-commit").await;
    answer(DOING, transaction.commit()).await?;
    if all_sent && ids.len() == rejected.len() + blocked.len() {
        return Ok(Settled::All);
    }
    match recorded {
        None if all_sent => ids.extend(sent.iter().map(|row| row.id())),
        recorded => ids.extend(recorded.unwrap_or_default()),
    }
    Ok(Settled::Only(ids))
}

/// Records acknowledged rows without committing. Returns whether all of them were recorded.
pub(crate) async fn record_sent(
    transaction: &ClaimTransaction<'_>,
    statements: &Statements,
    sent: &[&OutboxRow],
) -> Result<bool, PostgresFault> {
    let recorded = SentRows::new(statements, sent, false).record(transaction).await?;
    Ok(recorded == sent.len() as u64)
}

/// Records acknowledged rows and commits in one round trip. Requests are sent in the order in which they are first polled. If the
/// first one fails, COMMIT rolls back (PostgreSQL manual, "COMMIT").
async fn record_and_commit(
    transaction: ClaimTransaction<'_>,
    statements: &Statements,
    sent: &[&OutboxRow],
) -> Result<Settled, PostgresFault> {
    let rows = SentRows::new(statements, sent, false);
    let client = transaction.client();
    // Prepare first, or COMMIT would be sent before the statement.
    let statement = answer(DOING, transaction.ready(rows.sql)).await?;
    fail_point::reach("before-commit").await;
    let both = async { Ok(join!(rows.record_with(&statement, client), client.batch_execute(COMMIT))) };
    let (recorded, committed) = answer(DOING, both).await?;
    let recorded = recorded.and_then(|rows| committed.map(|()| rows));
    let recorded = recorded.map_err(|error| fault(DOING, error))?;
    transaction.has_ended();
    Ok(if recorded == sent.len() as u64 { Settled::All } else { Settled::Only(HashSet::new()) })
}

/// The statement that records acknowledged rows, and its parameters.
struct SentRows<'a> {
    sql: &'a str,
    ids: Vec<i64>,
    event_ids: Vec<Uuid>,
    /// Set if the statement finds rows by `ctid`.
    ctids: Option<Vec<Ctid>>,
}

impl<'a> SentRows<'a> {
    fn new(statements: &'a Statements, sent: &[&OutboxRow], around_locks: bool) -> SentRows<'a> {
        let queries = &statements.queries;
        let sql = match (statements.on_sent, around_locks) {
            (OnSent::Mark, false) => &queries.mark,
            (OnSent::Mark, true) => &queries.mark_around_locks,
            (OnSent::Delete, true) => &queries.delete_around_locks,
            (OnSent::Delete, false) => &queries.delete,
        };
        let by_ctid = statements.on_sent == OnSent::Delete && !around_locks;
        SentRows {
            sql,
            ids: sent.iter().map(|row| row.id()).collect(),
            event_ids: sent.iter().map(|row| row.event_id()).collect(),
            ctids: by_ctid.then(|| sent.iter().filter_map(|row| row.ctid()).collect()),
        }
    }

    fn params(&self) -> Vec<Param<'_>> {
        match &self.ctids {
            Some(ctids) => {
                params![*ctids => TID_ARRAY, self.ids => INT8_ARRAY, self.event_ids => UUID_ARRAY].into()
            }
            None => params![self.ids => INT8_ARRAY, self.event_ids => UUID_ARRAY].into(),
        }
    }

    /// Returns how many rows were recorded. A mark returns the number, a delete changes as many rows.
    async fn record_with(&self, statement: &Ready<'_>, client: &Client) -> Result<u64, Error> {
        if self.ctids.is_some() {
            return statement.execute(client, &self.params()).await;
        }
        let rows = statement.query(client, &self.params()).await?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
    }

    async fn record(&self, transaction: &ClaimTransaction<'_>) -> Result<u64, PostgresFault> {
        answer(DOING, async {
            let statement = transaction.ready(self.sql).await?;
            self.record_with(&statement, transaction.client()).await
        })
        .await
    }
}

/// Records the rows that are not locked, and returns their ids.
async fn record_around_locks(
    transaction: &ClaimTransaction<'_>,
    sent: &SentRows<'_>,
) -> Result<HashSet<i64>, PostgresFault> {
    let statement = Ready::Text(sent.sql);
    let rows: Vec<Row> = answer(DOING, statement.query(transaction.client(), &sent.params())).await?;
    let suppressed = rows.iter().filter(|row| !row.get::<_, bool>(1)).count();
    if suppressed > 0 {
        let message = format!(
            "the server reported success, but did not change {}. Fix: {SUPPRESSED}",
            counted(suppressed as u64, "row")
        );
        return Err(PostgresFault { kind: FaultKind::Refused, doing: DOING, message });
    }
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Records rejected rows. Returns the ids of those that were recorded.
async fn record_rejected(
    transaction: &ClaimTransaction<'_>,
    sql: &str,
    rejected: &[RejectedRow<'_, OutboxRow>],
) -> Result<Vec<i64>, PostgresFault> {
    let ids: Vec<i64> = rejected.iter().map(|rejected| rejected.row.id()).collect();
    let event_ids: Vec<Uuid> = rejected.iter().map(|rejected| rejected.row.event_id()).collect();
    let topics: Vec<&str> = rejected.iter().map(|rejected| rejected.topic).collect();
    let reasons: Vec<&str> = rejected.iter().map(|rejected| rejected.why.reason).collect();
    let errors: Vec<String> = rejected.iter().map(|rejected| storable(&rejected.why.error)).collect();
    let params = params![
        ids => INT8_ARRAY, event_ids => UUID_ARRAY,
        topics => TEXT_ARRAY, reasons => TEXT_ARRAY, errors => TEXT_ARRAY
    ];
    let recorded = transaction.query(DOING, sql, &params).await?;
    Ok(recorded.iter().map(|row| row.get(0)).collect())
}

async fn hold(
    transaction: &ClaimTransaction<'_>,
    sql: &str,
    held: &[TopicHold<'_, OutboxRow>],
) -> Result<(), PostgresFault> {
    let topics: Vec<&str> = held.iter().map(|held| held.topic).collect();
    let reasons: Vec<&str> = held.iter().map(|held| held.why.reason).collect();
    let errors: Vec<String> = held.iter().map(|held| storable(&held.why.error)).collect();
    let examples: Vec<i64> = held.iter().map(|held| held.example.id()).collect();
    let params =
        params![topics => TEXT_ARRAY, reasons => TEXT_ARRAY, errors => TEXT_ARRAY, examples => INT8_ARRAY];
    transaction.execute(DOING, sql, &params).await.map(drop)
}

/// Replaces NUL, which a text column cannot contain.
pub(super) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
