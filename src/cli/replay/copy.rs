//! Replays to another topic.

use super::{COPY_ROWS, Counts, Plan};
use crate::cli::exit::Failed;
use crate::cli::one_shot;
use crate::cli::terminal::progress::Progress;
use kafka::operate::copy::{Copier, Stopped};
use pg_outbox::topic::check_topic;
use postgres::operate::outbox_rows::{HistoryRange, HistoryRow, PostgresHistory};
use postgres::operate::replay::Copied;
use relay::event::Event;
use relay::failure::{FailureKind, KafkaFailure};
use relay::reason::TOPIC_AUTHORIZATION;
use relay::topic;

/// The topic to copy to.
pub(super) struct Target {
    name: String,
    copier: Copier,
    record_bytes_max: usize,
}

/// Refuses a name that no topic can have.
pub(super) fn check_name(to: &str) -> Result<(), Failed> {
    check_topic(to).map_err(|error| Failed::Usage(format!("--to-topic {}: {error}.", to.escape_debug())))
}

impl Plan<'_> {
    /// Connects to this topic and checks it. Publishes nothing. `counts` has the topics of the selected events.
    pub(super) async fn target(&self, to: &str, counts: &Counts) -> Result<Target, Failed> {
        if counts.topics.contains_key(to) {
            return Err(own_topic(to));
        }
        let cluster = self.config.cluster().map_err(|failure| one_shot::kafka(&failure))?;
        let copier = Copier::open(&cluster, to).await.map_err(|failure| unusable(to, &failure))?;
        one_shot::right_clusters(self.config, &self.database, cluster.comparison().answered()).await?;
        Ok(Target { name: to.to_owned(), copier, record_bytes_max: cluster.record_bytes_max() })
    }

    /// Publishes the selected events to this topic.
    pub(super) async fn copy(
        &self,
        mut target: Target,
        history: &PostgresHistory,
        counts: &mut Counts,
        progress: &Progress,
    ) -> Result<(), Failed> {
        let range = HistoryRange {
            selection: self.selection.clone(),
            highest: self.highest,
            record_bytes_max: target.record_bytes_max as i64,
        };
        self.begin(progress);
        let mut after = self.lowest.saturating_sub(1);
        while counts.events < self.most {
            let rows = history.rows(&range, after).await.map_err(one_shot::fault)?;
            let Some(last) = rows.last().map(HistoryRow::id) else { break };
            let left = usize::try_from(self.most - counts.events).unwrap_or(usize::MAX);
            let selected: Vec<&HistoryRow> = rows.iter().filter(|row| row.is_read).take(left).collect();
            for batch in selected.chunks(self.pace.batch_rows(COPY_ROWS) as usize) {
                if self.is_stopped.get() {
                    return Ok(());
                }
                self.copy_batch(&mut target, batch, counts).await?;
                self.pace.after(batch.len() as u64).await;
            }
            progress.advance_by(last.abs_diff(after));
            after = last;
        }
        Ok(())
    }

    async fn copy_batch(
        &self,
        Target { name: to, copier, .. }: &mut Target,
        batch: &[&HistoryRow],
        counts: &mut Counts,
    ) -> Result<(), Failed> {
        let mut topics = Vec::new();
        for row in batch {
            let topic = topic::name(&self.topics, &row.event);
            // An event can have been sent since the events were counted.
            if topic == *to {
                return Err(own_topic(to));
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
            recorded.map_err(one_shot::fault)?;
        }
        topics.into_iter().take(acknowledged).for_each(|topic| counts.add(topic, 1));
        failure.map_or(Ok(()), |failure| Err(unusable(to, &failure)))
    }
}

fn own_topic(to: &str) -> Failed {
    Failed::Usage(format!(
        "Events of topic {to} cannot be copied to the same topic. Leave out --to-topic to replay them in order."
    ))
}

fn unusable(to: &str, failure: &KafkaFailure) -> Failed {
    if failure.reason == TOPIC_AUTHORIZATION.word {
        let remedy = "Grant it Write and Describe on the topic.";
        return Failed::Configuration(anyhow::anyhow!(
            "The Kafka user may not publish to topic {to}. {remedy}"
        ));
    }
    match failure.kind {
        FailureKind::Topic => Failed::Usage(format!("--to-topic: {failure}.")),
        _ => one_shot::kafka(failure),
    }
}

fn copied(row: &HistoryRow) -> Copied {
    let aggregate_type = String::from_utf8_lossy(row.event.aggregate_type()).into_owned();
    Copied { id: row.id(), event_id: row.event.event_id(), aggregate_type }
}
