//! Replays to the same topic.

use super::{BATCH_ROWS, Counts, Plan};
use crate::cli::exit::Failed;
use crate::cli::one_shot;
use crate::cli::terminal::progress::Progress;
use postgres::operate::sent::ReplayBatch;

impl Plan<'_> {
    /// Counts what would be replayed.
    pub(super) async fn count(&self, progress: &Progress) -> Result<Counts, Failed> {
        self.begin(progress);
        let (mut counts, mut after) = (Counts::default(), self.lowest.saturating_sub(1));
        while counts.events < self.most {
            let batch = self.batch(after, BATCH_ROWS, &counts);
            let counted = self.replay.count(&self.selection, batch).await.map_err(one_shot::fault)?;
            counts.add_all(counted.topics);
            let Some(reached) = counted.reached else { break };
            progress.advance_by(reached.abs_diff(after));
            after = reached;
        }
        Ok(counts)
    }

    /// Sets the selected events back to unsent.
    pub(super) async fn run(&self, counts: &mut Counts, progress: &Progress) -> Result<(), Failed> {
        self.begin(progress);
        let mut after = self.lowest.saturating_sub(1);
        while counts.events < self.most && !self.is_stopped.get() {
            let batch = self.batch(after, self.pace.batch_rows(BATCH_ROWS), counts);
            let picked = self.replay.pick(&self.selection, batch).await.map_err(one_shot::fault)?;
            if !picked.ids.is_empty() {
                let replayed = self.replay.replay(&self.selection, &picked.ids, self.reason).await;
                let before = counts.events;
                counts.add_all(replayed.map_err(one_shot::fault)?);
                self.pace.after(counts.events - before).await;
            }
            let Some(reached) = picked.reached else { break };
            progress.advance_by(reached.abs_diff(after));
            after = reached;
        }
        Ok(())
    }

    /// Begins to read all rows.
    pub(super) fn begin(&self, progress: &Progress) {
        progress.begin("reading the outbox", self.highest.abs_diff(self.lowest) + 1);
    }

    fn batch(&self, after: i64, rows: u64, counts: &Counts) -> ReplayBatch {
        let rows = rows.min(self.most - counts.events) as i64;
        ReplayBatch { after, up_to: self.highest, rows }
    }
}
