//! Settling: the outcome of a batch is recorded and committed, in the transaction of its claim.

use super::event::{Ctid, OutboxRow};
use super::fault::answer;
use super::statements::Statements;
use crate::config::OnSent;
use crate::fail_point;
use crate::relay::event::Event;
use crate::relay::failure::Fault;
use crate::relay::outbox::{Settled, Settlement, Verdict};
use deadpool_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};

const DOING: &str = "settling a batch";

/// Records and commits. One statement for each kind of outcome, whatever the number of rows.
pub(super) async fn settle(
    transaction: Transaction<'_>,
    statements: &Statements,
    prepares: bool,
    settlement: &Settlement<'_, OutboxRow>,
) -> Result<Settled, Fault> {
    let to = Recorder { transaction: &transaction, prepares };
    let mut all = true;
    if !settlement.sent.is_empty() {
        all &= to.sent(statements, settlement).await? == settlement.sent.len() as u64;
    }
    if !settlement.rejected.is_empty() {
        all &= to.verdicts(&statements.dead_letter, &settlement.rejected).await?;
    }
    if !settlement.blocked.is_empty() {
        all &= to.verdicts(&statements.block, &settlement.blocked).await?;
    }
    if !settlement.held.is_empty() {
        let held = &settlement.held;
        let topics: Vec<&str> = held.iter().map(|held| held.topic).collect();
        let reasons: Vec<&str> = held.iter().map(|held| held.why.reason).collect();
        let errors: Vec<String> = held.iter().map(|held| storable(&held.why.error)).collect();
        let witnesses: Vec<i64> = held.iter().map(|held| held.witness.id()).collect();
        let arrays: [(&(dyn ToSql + Sync), Type); 4] = [
            (&topics, Type::TEXT_ARRAY),
            (&reasons, Type::TEXT_ARRAY),
            (&errors, Type::TEXT_ARRAY),
            (&witnesses, Type::INT8_ARRAY),
        ];
        to.execute(&statements.hold, &arrays).await?;
    }
    fail_point::reach("before-commit").await;
    answer(DOING, transaction.commit()).await?;
    Ok(Settled { all })
}

struct Recorder<'a, 'b> {
    transaction: &'a Transaction<'b>,
    prepares: bool,
}

impl Recorder<'_, '_> {
    async fn sent(
        &self,
        statements: &Statements,
        settlement: &Settlement<'_, OutboxRow>,
    ) -> Result<u64, Fault> {
        let ids: Vec<i64> = settlement.sent.iter().map(|row| row.id()).collect();
        let by_id: (&(dyn ToSql + Sync), Type) = (&ids, Type::INT8_ARRAY);
        match (statements.on_sent, settlement.skip_locked) {
            (OnSent::Mark, false) => self.execute(&statements.mark, &[by_id]).await,
            (OnSent::Mark, true) => self.execute(&statements.mark_around_locks, &[by_id]).await,
            (OnSent::Delete, true) => self.execute(&statements.delete_around_locks, &[by_id]).await,
            (OnSent::Delete, false) => {
                let places: Vec<Ctid> = settlement.sent.iter().filter_map(|row| row.ctid()).collect();
                self.execute(&statements.delete, &[(&places, Type::TID_ARRAY), by_id]).await
            }
        }
    }

    /// What was decided about single rows. True if it was recorded of all of them.
    async fn verdicts(&self, sql: &str, verdicts: &[Verdict<'_, OutboxRow>]) -> Result<bool, Fault> {
        let ids: Vec<i64> = verdicts.iter().map(|verdict| verdict.row.id()).collect();
        let topics: Vec<&str> = verdicts.iter().map(|verdict| verdict.topic).collect();
        let reasons: Vec<&str> = verdicts.iter().map(|verdict| verdict.why.reason).collect();
        let errors: Vec<String> = verdicts.iter().map(|verdict| storable(&verdict.why.error)).collect();
        let arrays: [(&(dyn ToSql + Sync), Type); 4] = [
            (&ids, Type::INT8_ARRAY),
            (&topics, Type::TEXT_ARRAY),
            (&reasons, Type::TEXT_ARRAY),
            (&errors, Type::TEXT_ARRAY),
        ];
        Ok(self.execute(sql, &arrays).await? == ids.len() as u64)
    }

    async fn execute(&self, sql: &str, params: &[(&(dyn ToSql + Sync), Type)]) -> Result<u64, Fault> {
        if !self.prepares {
            return answer(DOING, self.transaction.execute_typed(sql, params)).await;
        }
        let statement = answer(DOING, self.transaction.prepare_cached(sql)).await?;
        let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
        answer(DOING, self.transaction.execute(&statement, &params)).await
    }
}

/// A text column takes no NUL.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
