//! The reaper's statement: selects old rows in its snapshot, and rechecks each row under its lock.

use super::connection::SimConnection;
use super::server::OpenTransaction;
use super::tables::Change;
use crate::plan::Sabotage;
use relay::failure::PostgresFault;
use relay::reaper::{Pace, Reap, Reaped};

impl Reap for SimConnection {
    async fn reap_once(&mut self, _: Pace) -> Result<Reaped, PostgresFault> {
        self.send_statement(false).await?;
        let world = std::rc::Rc::clone(&self.server.world);
        let Some(retention) = world.plan.retention else { return Ok(Reaped { rows: 0, more: false }) };
        let reaps_unsent = world.breaks(Sabotage::ReapsUnsent);
        let old = |row: &super::tables::Row| row.sent_at.map_or(reaps_unsent, |at| at.elapsed() > retention);
        let picked: Vec<i64> = self.server.rows(old).iter().map(|row| row.event.id).take(4).collect();
        let open = OpenTransaction::begin(&self.server);
        let transaction = open.name;
        self.server.lock_table(transaction);
        // The snapshot is older than the locks.
        world.pass(20).await;
        let locked = self.server.lock_rows(transaction, &picked, true).await.unwrap_or_default();
        let unchecked = world.breaks(Sabotage::ReapsPutBack);
        let reaped: Vec<_> = locked.into_iter().filter(|row| old(row) || unchecked).collect();
        for row in &reaped {
            self.server.change(transaction, Change::Reaped(row.event));
        }
        self.server.commit(transaction, false);
        self.receive_answer().await?;
        Ok(Reaped { rows: reaped.len() as u64, more: reaped.len() == 4 })
    }
}
