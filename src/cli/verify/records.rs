//! Reads the records and compares them with the entries of the outbox.

use super::history::Collector;
use super::range::{Range, micros};
use super::read_error;
use super::topics::FoundTopic;
use crate::cli::exit::Failed;
use crate::cli::one_shot;
use crate::cli::terminal::progress::Progress;
use crate::config::Config;
use crate::verify::entry::{ENTRY_BYTES, Entry, Known};
use crate::verify::findings::Findings;
use crate::verify::judge::{Judge, unknown};
use crate::verify::scope::{CLOCKS_DIFFER_US, Partition, Scope, Topic};
use crate::verify::sorter::Sorter;
use kafka::cluster::KafkaCluster;
use kafka::operate::reader::Record;
use kafka::operate::reader::{PartitionRead, ReadError, TopicRead, TopicReader};
use kafka::operate::topics::Inspector;
use std::path::PathBuf;

/// The result of the comparison.
pub(super) struct Compared {
    pub scope: Scope,
    pub findings: Findings,
    pub records: u64,
    pub unsent: u64,
    pub unpublishable: u64,
}

/// Reads every topic from the beginning of the range to its end, and compares.
pub(super) async fn compare(
    config: &Config,
    cluster: &KafkaCluster,
    collector: Collector<'_>,
    range: &Range,
    shown_max: usize,
    progress: Progress,
) -> Result<Compared, Failed> {
    let scope = Scope {
        since_us: micros(range.since),
        unknown_until_us: micros(range.until).min(micros(range.now) - CLOCKS_DIFFER_US),
        reaped_until_us: collector.reaped_until_us(range.now),
        topics: Vec::new(),
    };
    let Collector { topics, entries, folder, unsent, unpublishable, .. } = collector;
    let (reader, topics) = topics.into_parts();
    let compacts = compacted(config, cluster, &topics).await?;
    let comparison =
        Comparison { scope, entries, findings: Findings::new(shown_max), folder, records: 0, progress };
    let reading = tokio::task::spawn_blocking(move || {
        let mut comparison = comparison;
        for (place, (topic, compacts)) in (0..).zip(topics.iter().zip(compacts)) {
            comparison.read(&reader, place, topic, compacts)?;
        }
        comparison.finish()
    });
    let finished = reading.await.map_err(|error| Failed::Failure(error.into()))?;
    let (scope, findings, records) = finished.map_err(read_error)?;
    Ok(Compared { scope, findings, records, unsent, unpublishable })
}

/// Whether Kafka compacts each topic; `None` if its settings are not readable.
async fn compacted(
    config: &Config,
    cluster: &KafkaCluster,
    topics: &[FoundTopic],
) -> Result<Vec<Option<bool>>, Failed> {
    let inspector =
        Inspector::new(&config.kafka, cluster).await.map_err(|failure| one_shot::kafka(&failure))?;
    let mut compacts = Vec::new();
    for topic in topics {
        compacts.push(match topic.partitions {
            0 => None,
            _ => inspector.compacts(&topic.name).await,
        });
    }
    Ok(compacts)
}

struct Comparison {
    scope: Scope,
    entries: Sorter<ENTRY_BYTES>,
    findings: Findings,
    folder: PathBuf,
    records: u64,
    progress: Progress,
}

impl Comparison {
    fn read(
        &mut self,
        reader: &TopicReader,
        place: u32,
        topic: &FoundTopic,
        compacts: Option<bool>,
    ) -> Result<(), ReadError> {
        let since_us = self.scope.since_us.saturating_sub(CLOCKS_DIFFER_US);
        let (scope, findings, entries) = (&self.scope, &mut self.findings, &mut self.entries);
        let each = |event_id: Option<uuid::Uuid>, record: Record| match event_id {
            Some(event_id) => entries.push(Entry { event_id, known: Known::Record(record) }.encode()),
            None => {
                unknown(scope, None, &record, findings);
                Ok(())
            }
        };
        let read = match topic.partitions {
            0 => TopicRead::default(),
            partitions => reader.read((place, &topic.name, partitions), since_us, &self.progress, each)?,
        };
        self.records += read.records;
        let partitions: Vec<Partition> = read.partitions.iter().map(partition).collect();
        self.scope.topics.push(Topic { name: topic.name.clone(), compacts, partitions });
        Ok(())
    }

    fn finish(self) -> Result<(Scope, Findings, u64), ReadError> {
        self.progress.begin("comparing", 0);
        let mut judge = Judge::new(&self.scope, self.findings, &self.folder);
        for entry in self.entries.sorted()? {
            judge.take(&entry?)?;
        }
        let findings = judge.finish()?;
        Ok((self.scope, findings, self.records))
    }
}

fn partition(read: &PartitionRead) -> Partition {
    // Without any record, all may have expired.
    let expired_until_us = read.is_truncated.then(|| read.first_us.unwrap_or(i64::MAX));
    Partition { expired_until_us, has_gaps: read.has_gaps }
}
