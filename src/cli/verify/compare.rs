//! Reads the rows of the outbox and the records of the topics, and compares them.

use super::entries::{ENTRY_WORDS, Entry, Expected, Known, Row, Sorter};
use super::judge::{CLOCKS_DIFFER_US, Findings, Judge, Partition, Scope, Topic, Unjudged, unknown};
use super::{Range, micros};
use crate::cli::failed::Failed;
use crate::cli::frame::Outbox;
use crate::cli::output::Progress;
use kafka::cluster::KafkaCluster;
use kafka::operate::reader::{self, PartitionRead, ReadError, Record, TopicReader};
use kafka::operate::topics::Inspector;
use pg_outbox::topic::check_topic;
use postgres::operate::sent::{
    Bounds, HistoryRange, HistoryRow, OtherIds, PostgresHistory, Recorded, SentSelection,
};
use relay::outbox::Event;
use relay::partition;
use relay::topic::{self, TopicRules};
use settings::text::in_line;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::task::spawn_blocking;
use uuid::Uuid;

/// A cluster has far fewer topics. A wrong template could name any number.
const TOPICS_MAX: usize = 10_000;

/// The topics that are verified.
pub(super) struct Topics {
    reader: Arc<TopicReader>,
    found: Vec<Topic>,
    places: HashMap<String, u32>,
    /// Whether only the topics of the command line are verified.
    is_fixed: bool,
}

impl Topics {
    /// These topics, or those of the events if the list is empty.
    pub(super) async fn new(reader: Arc<TopicReader>, only: &[String]) -> Result<Topics, Failed> {
        let mut topics = Topics { reader, found: Vec::new(), places: HashMap::new(), is_fixed: false };
        for name in only {
            if let Err(error) = check_topic(name) {
                return Err(Failed::Usage(format!("--topic {}: {error}.", name.escape_debug())));
            }
            let place = topics.place(name).await?;
            if place.is_some_and(|place| topics.found[place as usize].partitions.is_empty()) {
                return Err(Failed::Usage(format!(
                    "Topic {} does not exist, or the Kafka user may not describe it.",
                    name.escape_debug()
                )));
            }
        }
        topics.is_fixed = !only.is_empty();
        Ok(topics)
    }

    /// The place of a topic; `None` if it is not verified.
    async fn place(&mut self, name: &str) -> Result<Option<u32>, Failed> {
        if let Some(place) = self.places.get(name) {
            return Ok(Some(*place));
        }
        if self.is_fixed {
            return Ok(None);
        }
        if self.found.len() >= TOPICS_MAX {
            return Err(Failed::Usage(format!(
                "The events in the range belong to more than {TOPICS_MAX} topics. Select some with --topic."
            )));
        }
        let (reader, topic) = (Arc::clone(&self.reader), name.to_owned());
        let looked_up = spawn_blocking(move || reader.partitions(&topic)).await;
        let partitions = looked_up.map_err(|error| Failed::Failure(error.into()))??;
        let place = self.found.len() as u32;
        let partitions = vec![Partition::default(); partitions as usize];
        self.found.push(Topic { name: name.to_owned(), compacts: None, partitions });
        self.places.insert(name.to_owned(), place);
        Ok(Some(place))
    }
}

pub(super) struct Task<'a> {
    pub outbox: &'a Outbox<'a>,
    pub cluster: &'a KafkaCluster,
    pub range: Range,
    pub bounds: Bounds,
    /// The directory for temporary files.
    pub folder: PathBuf,
    /// The most findings of each kind to show.
    pub shown_max: usize,
}

/// Reads every row of the outbox, and every topic from the beginning of the range to its end, and compares.
pub(super) async fn compare(task: &Task<'_>, topics: Topics) -> Result<(Scope, Findings), Failed> {
    let Task { outbox, cluster, range, folder, .. } = task;
    let (history, progress) = (outbox.history(), Progress::new());
    let mut collector = Collector {
        task,
        rules: outbox.topics(),
        topics,
        entries: Sorter::new(folder),
        unjudged: Unjudged::default(),
        oldest_sent: None,
    };
    collector.read_rows(&history, &progress).await?;
    collector.read_other_ids(&history).await?;
    let reaped_until_us = collector.reaped_until_us();
    let Collector { topics: Topics { reader, found: mut topics, .. }, entries, unjudged, .. } = collector;
    let inspector = Inspector::new(&outbox.config.kafka, cluster).await?;
    for topic in topics.iter_mut().filter(|topic| !topic.partitions.is_empty()) {
        topic.compacts = inspector.compacts(&topic.name).await;
    }
    let scope = Scope {
        since_us: micros(range.since),
        unknown_until_us: micros(range.until).min(micros(range.now) - CLOCKS_DIFFER_US),
        reaped_until_us,
        topics,
    };
    let (findings, folder) = (Findings::new(task.shown_max, unjudged), folder.clone());
    let judging = spawn_blocking(move || judge(&reader, (scope, findings), entries, &folder, &progress));
    Ok(judging.await.map_err(|error| Failed::Failure(error.into()))??)
}

/// The entries of the outbox, and what cannot be judged.
struct Collector<'a> {
    task: &'a Task<'a>,
    rules: TopicRules,
    topics: Topics,
    entries: Sorter<ENTRY_WORDS>,
    unjudged: Unjudged,
    oldest_sent: Option<SystemTime>,
}

impl Collector<'_> {
    /// Reads every row. Those outside the range show which records are known.
    async fn read_rows(&mut self, history: &PostgresHistory, progress: &Progress) -> Result<(), Failed> {
        let Task { range, bounds, .. } = self.task;
        let wanted = HistoryRange {
            selection: SentSelection {
                by_created: true,
                since: Some(range.since),
                until: Some(range.until),
                ..SentSelection::default()
            },
            highest: bounds.highest,
            record_bytes_max: self.task.cluster.record_bytes_max() as i64,
        };
        progress.begin("reading the outbox", bounds.highest.abs_diff(bounds.lowest) + 1);
        let mut after = bounds.lowest.saturating_sub(1);
        loop {
            let rows = history.rows(&wanted, after).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            progress.advance_by(last.id().abs_diff(after));
            after = last.id();
            for row in &rows {
                self.add(row).await?;
            }
        }
    }

    /// Reads the event ids of dead letters, including discarded ones, and of replayed and copied events. The topics of all rows
    /// must be known.
    async fn read_other_ids(&mut self, history: &PostgresHistory) -> Result<(), Failed> {
        for kind in [OtherIds::DeadLetters, OtherIds::Acts] {
            let mut after = i64::MIN;
            loop {
                let recorded = history.other_ids(kind, after).await?;
                let Some(reached) = recorded.reached else { break };
                after = reached;
                for (event_id, what) in recorded.rows {
                    let known = match what {
                        Recorded::DeadLetter => Some(Known::DeadLetter),
                        Recorded::Replay => Some(Known::Replay),
                        // The records of other topics are not read.
                        Recorded::Copy(topic) => self.topics.places.get(&topic).copied().map(Known::Copy),
                    };
                    if let Some(known) = known {
                        self.push(event_id, known)?;
                    }
                }
            }
        }
        Ok(())
    }

    async fn add(&mut self, row: &HistoryRow) -> Result<(), Failed> {
        if let Some(sent_at) = row.sent_at {
            self.oldest_sent = Some(self.oldest_sent.map_or(sent_at, |oldest| oldest.min(sent_at)));
        }
        self.unjudged.unsent += u64::from(row.is_in_range && !row.is_read);
        let expected = if row.is_read { self.expected(row).await? } else { None };
        self.push(row.event.event_id(), Known::Row(Row { id: row.id(), expected }))
    }

    /// What the relay publishes for the row; `None` if it is nothing, or not verified.
    async fn expected(&mut self, row: &HistoryRow) -> Result<Option<Expected>, Failed> {
        let Ok(name) = topic::of(&self.rules, &row.event) else {
            self.unjudged.unpublishable += 1;
            return Ok(None);
        };
        let Some(place) = self.topics.place(&name).await? else { return Ok(None) };
        let (headers, bytes_max) =
            (&self.task.outbox.config.outbox.headers, self.task.cluster.record_bytes_max());
        let Ok(fingerprint) = reader::of_event(&row.event, headers, bytes_max) else {
            self.unjudged.unpublishable += 1;
            return Ok(None);
        };
        let partition = match self.topics.found[place as usize].partitions.len() {
            0 => 0,
            partitions => partition::of(row.event.key(), partitions as u32),
        };
        let created_us = row.event.created_at_us();
        Ok(Some(Expected { topic: place, partition, created_us, fingerprint }))
    }

    fn push(&mut self, event_id: Uuid, known: Known) -> Result<(), Failed> {
        let entry = Entry { event_id, known };
        Ok(self.entries.push(entry.encode()).map_err(ReadError::Files)?)
    }

    /// Rows that were sent before this time, in microseconds since 1970, may have been reaped.
    fn reaped_until_us(&self) -> i64 {
        let (now, reaper) = (self.task.range.now, &self.task.outbox.config.reaper);
        let by_age = reaper.enabled.then(|| now.checked_sub(reaper.retention)).flatten();
        // Rows before the oldest one may have been deleted with a shorter retention.
        let oldest = self.oldest_sent.unwrap_or(now);
        micros(by_age.map_or(oldest, |by_age| by_age.max(oldest)))
    }
}

/// Reads the topics, and judges their records with the entries of the outbox.
fn judge(
    reader: &TopicReader,
    (mut scope, mut findings): (Scope, Findings),
    mut entries: Sorter<ENTRY_WORDS>,
    folder: &Path,
    progress: &Progress,
) -> Result<(Scope, Findings), ReadError> {
    let since_us = scope.since_us.saturating_sub(CLOCKS_DIFFER_US);
    for place in 0..scope.topics.len() {
        let Topic { name, partitions, .. } = &scope.topics[place];
        if partitions.is_empty() {
            continue;
        }
        let begin = |left| progress.begin(&format!("reading {}", in_line(name, 249)), left);
        let each = |event_id: Option<Uuid>, record: Record| {
            progress.advance_by(1);
            match event_id {
                Some(event_id) => entries.push(Entry { event_id, known: Known::Record(record) }.encode()),
                None => {
                    unknown(&scope, None, &record, &mut findings);
                    Ok(())
                }
            }
        };
        let topic = (place as u32, name.as_str(), partitions.len() as u32);
        let read = reader.read(topic, since_us, begin, each)?;
        findings.records += read.records;
        scope.topics[place].partitions = read.partitions.iter().map(partition).collect();
    }
    progress.begin("comparing", 0);
    let mut judge = Judge::new(&scope, findings, folder);
    for entry in entries.sorted()? {
        judge.take(&entry?)?;
    }
    let findings = judge.finish()?;
    Ok((scope, findings))
}

fn partition(read: &PartitionRead) -> Partition {
    // Without any record, all may have expired.
    let expired_until_us = read.is_truncated.then(|| read.first_us.unwrap_or(i64::MAX));
    Partition { expired_until_us, has_gaps: read.has_gaps }
}
