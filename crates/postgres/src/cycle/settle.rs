//! Settling: records the outcome of a batch in the transaction of its claim, and commits.

use crate::connection::fault::{answer, fault};
use crate::cycle::claim::transaction::{ClaimTransaction, commit_sql};
use crate::cycle::event::{Ctid, OutboxRow};
use crate::cycle::statements::Statements;
use crate::options::OnSent;
use futures_util::join;
use relay::event::Event;
use relay::fail_point;
use relay::failure::{FaultKind, PostgresFault};
use relay::outbox::{RejectedRow, Settled, Settlement};
use settings::text::counted;
use std::collections::HashSet;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

const DOING: &str = "settling a batch";
const SUPPRESSED: &str = "drop the trigger on the outbox that suppresses or undoes updates or deletes (`outbox-relay doctor` names it)";

/// Records the outcome with one statement per kind, and commits.
pub(crate) async fn settle(
    transaction: ClaimTransaction<'_>,
    statements: &Statements,
    prepares: bool,
    settlement: &Settlement<'_, OutboxRow>,
) -> Result<Settled, PostgresFault> {
    let recorder = Recorder { transaction: &transaction, prepares };
    let only_sent =
        settlement.rejected.is_empty() && settlement.blocked.is_empty() && settlement.held.is_empty();
    if only_sent && !settlement.skip_locked && matches!(transaction, ClaimTransaction::Manual(_)) {
        let settled = recorder.sent_and_commit(statements, settlement).await?;
        if let ClaimTransaction::Manual(manual) = transaction {
            manual.has_ended();
        }
        return Ok(settled);
    }
    let (mut all, mut recorded) = (true, None);
    if !settlement.sent.is_empty() {
        let sent = SentRows::new(statements, &settlement.sent, settlement.skip_locked);
        let rows = if settlement.skip_locked {
            recorded.insert(recorder.recorded(sent.sql, &sent.values()).await?).len()
        } else {
            recorder.count(&sent).await? as usize
        };
        all &= rows == settlement.sent.len();
    }
    if !settlement.rejected.is_empty() {
        all &= recorder.rejected_rows(&statements.dead_letter, &settlement.rejected).await?;
    }
    if !settlement.blocked.is_empty() {
        all &= recorder.rejected_rows(&statements.block, &settlement.blocked).await?;
    }
    if !settlement.held.is_empty() {
        let held = &settlement.held;
        let topics: Vec<&str> = held.iter().map(|held| held.topic).collect();
        let reasons: Vec<&str> = held.iter().map(|held| held.why.reason).collect();
        let errors: Vec<String> = held.iter().map(|held| storable(&held.why.error)).collect();
        let witnesses: Vec<i64> = held.iter().map(|held| held.example.id()).collect();
        let arrays: [(&(dyn ToSql + Sync), Type); 4] = [
            (&topics, Type::TEXT_ARRAY),
            (&reasons, Type::TEXT_ARRAY),
            (&errors, Type::TEXT_ARRAY),
            (&witnesses, Type::INT8_ARRAY),
        ];
        recorder.execute(&statements.hold, &arrays).await?;
    }
    fail_point::reach("before-commit").await;
    answer(DOING, transaction.commit()).await?;
    Ok(match (all, recorded) {
        (true, _) => Settled::All,
        (false, Some(ids)) => Settled::Only(ids),
        (false, None) => Settled::Fewer,
    })
}

/// Records acknowledged rows without committing. Returns whether all of them were recorded.
pub(crate) async fn record_sent(
    transaction: &ClaimTransaction<'_>,
    statements: &Statements,
    prepares: bool,
    sent: &[&OutboxRow],
) -> Result<bool, PostgresFault> {
    let rows = SentRows::new(statements, sent, false);
    let recorded = Recorder { transaction, prepares }.count(&rows).await?;
    Ok(recorded == sent.len() as u64)
}

/// The statement that records acknowledged rows, and its parameters.
struct SentRows<'a> {
    sql: &'a str,
    ids: Vec<i64>,
    /// Set if the statement finds rows by `ctid`.
    ctids: Option<Vec<Ctid>>,
}

impl<'a> SentRows<'a> {
    fn new(statements: &'a Statements, sent: &[&OutboxRow], skip_locked: bool) -> SentRows<'a> {
        let sql = match (statements.on_sent, skip_locked) {
            (OnSent::Mark, false) => &statements.mark,
            (OnSent::Mark, true) => &statements.mark_around_locks,
            (OnSent::Delete, true) => &statements.delete_around_locks,
            (OnSent::Delete, false) => &statements.delete,
        };
        let by_ctid = statements.on_sent == OnSent::Delete && !skip_locked;
        SentRows {
            sql,
            ids: sent.iter().map(|row| row.id()).collect(),
            ctids: by_ctid.then(|| sent.iter().filter_map(|row| row.ctid()).collect()),
        }
    }

    fn values(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        let ctids = self.ctids.as_ref().map(|ctids| (ctids as &(dyn ToSql + Sync), Type::TID_ARRAY));
        ctids.into_iter().chain([(&self.ids as &(dyn ToSql + Sync), Type::INT8_ARRAY)]).collect()
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for `map`")]
fn counted_rows(row: Row) -> u64 {
    row.get::<_, i64>(0).unsigned_abs()
}

struct Recorder<'a, 'b> {
    transaction: &'a ClaimTransaction<'b>,
    prepares: bool,
}

impl Recorder<'_, '_> {
    /// Records acknowledged rows and commits in one round trip. Requests are sent in the order in which they are first
    /// polled. If the first one fails, COMMIT rolls back (PostgreSQL manual, "COMMIT").
    async fn sent_and_commit(
        &self,
        statements: &Statements,
        settlement: &Settlement<'_, OutboxRow>,
    ) -> Result<Settled, PostgresFault> {
        let sent = SentRows::new(statements, &settlement.sent, settlement.skip_locked);
        let values = sent.values();
        let client = self.transaction.client();
        let commit_sql = commit_sql();
        let commit = client.batch_execute(&commit_sql);
        let (recorded, committed) = if self.prepares {
            // Prepare first, or COMMIT would be sent before the statement.
            let statement = answer(DOING, self.transaction.prepare_cached(sent.sql)).await?;
            fail_point::reach("before-commit").await;
            let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|(value, _)| *value).collect();
            let record = async {
                match sent.ctids {
                    Some(_) => client.execute(&statement, &values).await,
                    None => client.query_one(&statement, &values).await.map(counted_rows),
                }
            };
            answer(DOING, async { Ok(join!(record, commit)) }).await?
        } else {
            fail_point::reach("before-commit").await;
            let record = async {
                match sent.ctids {
                    Some(_) => client.execute_typed(sent.sql, &values).await,
                    None => client.query_typed_one(sent.sql, &values).await.map(counted_rows),
                }
            };
            answer(DOING, async { Ok(join!(record, commit)) }).await?
        };
        let recorded = recorded.and_then(|rows| committed.map(|()| rows));
        let rows = recorded.map_err(|error| fault(DOING, error))?;
        Ok(if rows == settlement.sent.len() as u64 { Settled::All } else { Settled::Fewer })
    }

    /// Records rejected rows. Returns whether all of them were recorded.
    async fn rejected_rows(
        &self,
        sql: &str,
        rejected_rows: &[RejectedRow<'_, OutboxRow>],
    ) -> Result<bool, PostgresFault> {
        let ids: Vec<i64> = rejected_rows.iter().map(|rejected| rejected.row.id()).collect();
        let topics: Vec<&str> = rejected_rows.iter().map(|rejected| rejected.topic).collect();
        let reasons: Vec<&str> = rejected_rows.iter().map(|rejected| rejected.why.reason).collect();
        let errors: Vec<String> =
            rejected_rows.iter().map(|rejected| storable(&rejected.why.error)).collect();
        let arrays: [(&(dyn ToSql + Sync), Type); 4] = [
            (&ids, Type::INT8_ARRAY),
            (&topics, Type::TEXT_ARRAY),
            (&reasons, Type::TEXT_ARRAY),
            (&errors, Type::TEXT_ARRAY),
        ];
        Ok(self.execute(sql, &arrays).await? == ids.len() as u64)
    }

    /// Runs a statement that returns the ids of the rows that are not locked, and whether it recorded them.
    async fn recorded(
        &self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<HashSet<i64>, PostgresFault> {
        let rows = answer(DOING, self.transaction.client().query_typed(sql, params)).await?;
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

    /// Records acknowledged rows, and returns how many were recorded. A mark returns the number, a delete changes as many rows.
    async fn count(&self, sent: &SentRows<'_>) -> Result<u64, PostgresFault> {
        let (values, client) = (sent.values(), self.transaction.client());
        if sent.ctids.is_some() {
            return self.execute(sent.sql, &values).await;
        }
        if !self.prepares {
            return answer(DOING, client.query_typed_one(sent.sql, &values)).await.map(counted_rows);
        }
        let statement = answer(DOING, self.transaction.prepare_cached(sent.sql)).await?;
        let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|(value, _)| *value).collect();
        answer(DOING, client.query_one(&statement, &values)).await.map(counted_rows)
    }

    async fn execute(&self, sql: &str, params: &[(&(dyn ToSql + Sync), Type)]) -> Result<u64, PostgresFault> {
        if !self.prepares {
            return answer(DOING, self.transaction.client().execute_typed(sql, params)).await;
        }
        let statement = answer(DOING, self.transaction.prepare_cached(sql)).await?;
        let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
        answer(DOING, self.transaction.client().execute(&statement, &params)).await
    }
}

/// Replaces NUL, which a text column cannot contain.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
