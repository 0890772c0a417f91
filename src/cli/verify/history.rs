//! Turns the rows of the outbox into entries.

use super::range::{Range, micros};
use super::topics::Topics;
use crate::cli::exit::Failed;
use crate::cli::one_shot;
use crate::cli::terminal::progress::Progress;
use crate::config::Config;
use crate::verify::entry::{ENTRY_BYTES, Entry, Expected, Known, Row};
use crate::verify::sorter::Sorter;
use kafka::operate::reader;
use kafka::operate::reader::ReadError;
use postgres::operate::sent::SentSelection;
use postgres::operate::sent::{
    Bounds, HistoryRange, HistoryRow, OtherId, OtherIds, PostgresHistory, Recorded,
};
use relay::event::Event;
use relay::partition;
use relay::topic::{self, TopicRules};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use uuid::Uuid;

/// The entries of the outbox, and what cannot be judged.
pub(super) struct Collector<'a> {
    config: &'a Config,
    rules: TopicRules,
    record_bytes_max: usize,
    pub topics: Topics,
    pub entries: Sorter<ENTRY_BYTES>,
    pub folder: PathBuf,
    /// Events of the range that are not sent yet.
    pub unsent: u64,
    /// Events of the range that the relay cannot publish with the present configuration.
    pub unpublishable: u64,
    /// The earliest `sent_at`.
    pub oldest_sent: Option<SystemTime>,
}

impl<'a> Collector<'a> {
    pub(super) fn new(
        config: &'a Config,
        rules: TopicRules,
        record_bytes_max: usize,
        topics: Topics,
        folder: &Path,
    ) -> Collector<'a> {
        Collector {
            config,
            rules,
            record_bytes_max,
            topics,
            entries: Sorter::new(folder),
            folder: folder.to_owned(),
            unsent: 0,
            unpublishable: 0,
            oldest_sent: None,
        }
    }

    /// Reads every row. Those outside the range show which records are known.
    pub(super) async fn read_rows(
        &mut self,
        history: &PostgresHistory,
        range: &Range,
        bounds: &Bounds,
        progress: &Progress,
    ) -> Result<(), Failed> {
        let wanted = HistoryRange {
            selection: SentSelection {
                by_created: true,
                since: Some(range.since),
                until: Some(range.until),
                ..SentSelection::default()
            },
            highest: bounds.highest,
            record_bytes_max: self.record_bytes_max as i64,
        };
        progress.begin("reading the outbox", bounds.highest.abs_diff(bounds.lowest) + 1);
        let mut after = bounds.lowest.saturating_sub(1);
        loop {
            let rows = history.rows(&wanted, after).await.map_err(one_shot::fault)?;
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
    pub(super) async fn read_other_ids(&mut self, history: &PostgresHistory) -> Result<(), Failed> {
        for kind in [OtherIds::DeadLetters, OtherIds::Acts] {
            let mut after = i64::MIN;
            loop {
                let ids = history.other_ids(kind, after).await.map_err(one_shot::fault)?;
                let Some(last) = ids.last() else { break };
                after = last.id;
                for OtherId { event_id, what, .. } in ids {
                    let known = match what {
                        Recorded::DeadLetter => Some(Known::DeadLetter),
                        Recorded::Replay => Some(Known::Replay),
                        // The records of other topics are not read.
                        Recorded::Copy(topic) => self.topics.known(&topic).map(Known::Copy),
                    };
                    if let (Some(event_id), Some(known)) = (event_id, known) {
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
        self.unsent += u64::from(row.is_in_range && !row.is_read);
        let expected = if row.is_read { self.expected(row).await? } else { None };
        self.push(row.event.event_id(), Known::Row(Row { id: row.id(), expected }))
    }

    /// What the relay publishes for the row; `None` if it is nothing, or not verified.
    async fn expected(&mut self, row: &HistoryRow) -> Result<Option<Expected>, Failed> {
        let outbox = &self.config.outbox;
        let Ok(name) = topic::of(&self.rules, &row.event) else {
            self.unpublishable += 1;
            return Ok(None);
        };
        let Some(place) = self.topics.place(&name).await? else { return Ok(None) };
        let Ok(fingerprint) = reader::of_event(&row.event, &outbox.headers, self.record_bytes_max) else {
            self.unpublishable += 1;
            return Ok(None);
        };
        let partition = match self.topics.at(place).partitions {
            0 => 0,
            partitions => partition::of(row.event.key(), partitions),
        };
        let created_us = row.event.created_at_us();
        Ok(Some(Expected { topic: place, partition, created_us, fingerprint }))
    }

    fn push(&mut self, event_id: Uuid, known: Known) -> Result<(), Failed> {
        let entry = Entry { event_id, known };
        self.entries.push(entry.encode()).map_err(|error| super::read_error(ReadError::Files(error)))
    }

    /// Rows that were sent before this time, in microseconds since 1970, may have been reaped.
    pub(super) fn reaped_until_us(&self, now: SystemTime) -> i64 {
        let by_age =
            self.config.reaper.enabled.then(|| now.checked_sub(self.config.reaper.retention)).flatten();
        // Rows before the oldest one may have been deleted with a shorter retention.
        let oldest = self.oldest_sent.unwrap_or(now);
        micros(by_age.map_or(oldest, |by_age| by_age.max(oldest)))
    }
}
