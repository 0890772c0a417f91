//! The statements of a settlement.

use super::SimClaim;
use crate::event::{SimEvent, topic_number};
use crate::postgres::server::Server;
use crate::postgres::tables::{Change, Row};
use crate::promises::Damage;
use crate::world::add;
use relay::failure::FaultKind;
use relay::outbox::{Event, Settled, Settlement};
use std::collections::HashSet;
use tokio::time::Instant;

impl SimClaim<'_> {
    /// Blocks the keys of all refused rows, regardless of the rows before them.
    pub(super) fn block_at_once(&self) {
        let server = &self.connection.server;
        let (refused, blocked) = (self.connection.process.refused.take(), server.blocked());
        for row in server.rows(|row| row.sent_at.is_none() && !blocked.contains(&row.event)) {
            let is_refused = refused.iter().any(|event| event.identity == row.event.identity);
            if is_refused && self.lanes.contains(&row.event.lane()) {
                server.change(self.transaction, Change::Block(row.event));
            }
        }
    }
}

/// Records acknowledged rows, and returns their ids. `None` if other sessions have locked them.
pub(super) async fn record_sent(
    server: &Server,
    transaction: u64,
    sent_rows: &[&SimEvent],
    around_locks: bool,
) -> Option<HashSet<i64>> {
    server.lock_table(transaction);
    let ids: Vec<i64> = sent_rows.iter().map(|row| row.id).collect();
    let rows = server.lock_rows(transaction, &ids, around_locks).await?;
    for row in &rows {
        server.change(transaction, sent(server, row));
    }
    Some(rows.iter().map(|row| row.event.id).collect())
}

/// Runs the statements of a settlement.
pub(super) async fn record(
    server: &Server,
    transaction: u64,
    settlement: &Settlement<'_, SimEvent>,
) -> Result<Settled, FaultKind> {
    let locked = FaultKind::Contended;
    let sent_ids =
        record_sent(server, transaction, &settlement.sent, settlement.around_locks).await.ok_or(locked)?;
    let mut recorded = sent_ids.len();
    let ids: Vec<i64> = settlement.rejected.iter().map(|verdict| verdict.row.id).collect();
    let rows = server.lock_rows(transaction, &ids, true).await.ok_or(locked)?;
    recorded += rows.len();
    for row in &rows {
        if server.promises.damage(row.event.identity) == Damage::Unmovable {
            return Err(FaultKind::Data);
        }
        server.change(transaction, Change::DeadLetter(row.event));
    }
    if !settlement.blocked.is_empty() || !settlement.held.is_empty() {
        server.lock_holds(transaction).await.ok_or(locked)?;
    }
    for verdict in &settlement.blocked {
        // The same condition as in the statement: the row exists, is unsent, and does not block its key yet.
        let unsent = server.rows(|row| row.event.id == verdict.row.id && row.sent_at.is_none());
        if let (Some(row), false) = (unsent.first(), server.blocked().contains(verdict.row)) {
            server.change(transaction, Change::Block(row.event));
        }
    }
    for held in &settlement.held {
        let topic = topic_number(held.topic);
        if server.held(Some(topic)).is_none() {
            if held.why.reason == "stuck" {
                add(&server.world.count.stuck, 1);
            }
            server.change(transaction, Change::Hold(topic, held.why.reason, Some(held.example.key)));
        }
    }
    Ok(match settlement.around_locks {
        _ if recorded == settlement.sent.len() + settlement.rejected.len() => Settled::All,
        around_locks if around_locks || sent_ids.len() == settlement.sent.len() => Settled::Only(sent_ids),
        _ => Settled::Only(HashSet::new()),
    })
}

pub(super) fn sent(server: &Server, row: &Row) -> Change {
    if server.world.plan.deletes_sent {
        Change::SentAndDeleted(row.event)
    } else {
        Change::Sent(row.event, Instant::now())
    }
}

/// The settlement of a claim that has ended, as a defective relay would send it over another connection.
pub(super) fn settle_late(server: &Server, settlement: &Settlement<'_, SimEvent>) {
    let rows = server.rows(|row| settlement.sent.iter().any(|sent| sent.id == row.event.id));
    let changes: Vec<Change> = rows.iter().map(|row| sent(server, row)).collect();
    server.commit_at_once(&changes, false);
}
