//! Replays to another topic.

use super::{Counts, Plan, after_some};
use crate::cli::exit::Failed;
use crate::cli::one_shot;
use crate::cli::progress::Progress;
use crate::kafka::cluster::KafkaCluster;
use crate::kafka::copy::{Copier, Stopped};
use crate::postgres::operate::history::{HistoryRange, HistoryRow, PostgresHistory};
use crate::postgres::operate::replay::Copied;
use crate::relay::event::Event;
use crate::relay::failure::FailureKind;
use crate::relay::topic;

impl Plan<'_> {
    /// Publishes the selected events to this topic.
    pub(super) async fn copy(
        &self,
        history: &PostgresHistory,
        to: &str,
        progress: &Progress,
    ) -> Result<Counts, Failed> {
        let (kafka, outbox, relay) = (&self.config.kafka, &self.config.outbox, &self.config.relay);
        let cluster = KafkaCluster::new(kafka, outbox, relay).map_err(|failure| one_shot::kafka(&failure))?;
        let mut copier = Copier::open(&cluster, to).await.map_err(|failure| match failure.kind {
            FailureKind::Topic => Failed::Usage(format!("--to-topic: {failure}.")),
            _ => one_shot::kafka(&failure),
        })?;
        let range = HistoryRange {
            selection: self.selection.clone(),
            highest: self.highest,
            record_bytes_max: cluster.record_bytes_max() as i64,
        };
        progress.begin("reading the outbox", self.highest.abs_diff(self.lowest) + 1);
        let (mut counts, mut after) = (Counts::default(), self.lowest.saturating_sub(1));
        while counts.events < self.most {
            let rows = history.rows(&range, after).await;
            let rows = rows.map_err(|fault| after_some(one_shot::fault(fault), counts.events))?;
            let Some(last) = rows.last().map(HistoryRow::id) else { break };
            let left = usize::try_from(self.most - counts.events).unwrap_or(usize::MAX);
            let selected: Vec<&HistoryRow> = rows.iter().filter(|row| row.is_read).take(left).collect();
            for batch in selected.chunks(self.pace.batch_rows() as usize) {
                self.copy_batch(&mut copier, to, batch, &mut counts).await?;
                self.pace.after(batch.len() as u64).await;
            }
            progress.advance_by(last.abs_diff(after));
            after = last;
        }
        Ok(counts)
    }

    async fn copy_batch(
        &self,
        copier: &mut Copier,
        to: &str,
        batch: &[&HistoryRow],
        counts: &mut Counts,
    ) -> Result<(), Failed> {
        let done = counts.events;
        let mut topics = Vec::new();
        for row in batch {
            let topic = topic::name(&self.topics, &row.event);
            if topic == to {
                let text = format!(
                    "Events of {to} cannot be copied to it. Leave out --to-topic to replay them in order."
                );
                return Err(after_some(Failed::Usage(text), done));
            }
            topics.push(topic);
        }
        let events: Vec<_> = batch.iter().map(|row| &row.event).collect();
        let (acknowledged, failure) = match copier.publish(&events).await {
            Ok(()) => (batch.len(), None),
            Err(Stopped { acknowledged, failure }) => (acknowledged, Some(failure)),
        };
        let copied: Vec<Copied> = batch[..acknowledged].iter().map(|row| copied(row)).collect();
        if !copied.is_empty() {
            let recorded = self.replay.record_copies(&copied, to, self.reason).await;
            recorded.map_err(|fault| after_some(one_shot::fault(fault), done))?;
        }
        topics.into_iter().take(acknowledged).for_each(|topic| counts.add(topic, 1));
        match failure {
            None => Ok(()),
            Some(failure) => Err(after_some(one_shot::kafka(&failure), counts.events)),
        }
    }
}

fn copied(row: &HistoryRow) -> Copied {
    let aggregate_type = String::from_utf8_lossy(row.event.aggregate_type()).into_owned();
    Copied { id: row.id(), event_id: row.event.event_id(), aggregate_type }
}
