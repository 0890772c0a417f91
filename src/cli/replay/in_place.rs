//! Replays to the same topic.

use super::{BATCH_ROWS, Counts, Plan, after_some};
use crate::cli::exit::Failed;
use crate::cli::one_shot;
use crate::cli::progress::Progress;
use crate::postgres::operate::replay::ReplayBatch;

impl Plan<'_> {
    /// Counts what would be replayed.
    pub(super) async fn count(&self, progress: &Progress) -> Result<Counts, Failed> {
        self.each_batch(progress, false).await
    }

    /// Sets the selected events back to unsent.
    pub(super) async fn run(&self, progress: &Progress) -> Result<Counts, Failed> {
        self.each_batch(progress, true).await
    }

    async fn each_batch(&self, progress: &Progress, replays: bool) -> Result<Counts, Failed> {
        progress.begin("reading the outbox", self.highest.abs_diff(self.lowest) + 1);
        let (mut counts, mut after) = (Counts::default(), self.lowest.saturating_sub(1));
        while counts.events < self.most {
            let rows_max = if replays { self.pace.batch_rows() } else { BATCH_ROWS };
            let rows = rows_max.min(self.most - counts.events) as i64;
            let batch = ReplayBatch { after, up_to: self.highest, rows };
            let replayed = if replays {
                self.replay.replay(&self.selection, batch, self.reason).await
            } else {
                self.replay.count(&self.selection, batch).await
            };
            let replayed = replayed.map_err(|fault| {
                after_some(one_shot::fault(fault), if replays { counts.events } else { 0 })
            })?;
            let Some(reached) = replayed.reached else { break };
            progress.advance_by(reached.abs_diff(after));
            after = reached;
            let before = counts.events;
            replayed.topics.into_iter().for_each(|(topic, events)| counts.add(topic, events));
            if replays {
                self.pace.after(counts.events - before).await;
            }
        }
        Ok(counts)
    }
}
