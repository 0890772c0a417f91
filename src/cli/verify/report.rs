//! The report of `verify`, as text and as the object of `--json`.

use super::range::Range;
use super::records::Compared;
use crate::cli::exit::Failed;
use crate::cli::terminal::output::{counted, thousands, time};
use crate::config::Config;
use crate::verify::findings::{Finding, Findings, Kind};
use crate::verify::scope::Scope;
use serde::Serialize;
use std::fmt;
use std::time::{Duration, SystemTime};

/// The object of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    table: String,
    since: String,
    until: String,
    /// Rows that were sent before this time may have been reaped.
    reaped_until: String,
    topics: Vec<String>,
    /// Events of the range that were sent.
    events: u64,
    records: u64,
    lost: u64,
    reordered: u64,
    altered: u64,
    unknown: u64,
    duplicates: u64,
    /// The number of findings that break a guarantee.
    pub(super) broken: u64,
    not_judged: NotJudged,
    findings: Vec<FindingJson>,
}

/// What could not be judged. docs/verify-and-replay.md explains each field.
#[derive(Debug, Serialize)]
struct NotJudged {
    unsent: u64,
    unpublishable: u64,
    expired: u64,
    compacted: u64,
    may_be_compacted: u64,
    topic_missing: u64,
    reaped: u64,
    dead_letters: u64,
    replayed: u64,
    copies: u64,
    order: u64,
}

#[derive(Debug, Serialize)]
struct FindingJson {
    kind: &'static str,
    event_id: Option<String>,
    outbox_id: Option<i64>,
    topic: String,
    partition: u32,
    offset: Option<i64>,
    parts: Vec<&'static str>,
}

impl Report {
    pub(super) fn new(config: &Config, range: &Range, compared: Compared, allow_unknown: bool) -> Report {
        let Compared { scope, findings, records, unsent, unpublishable } = compared;
        let allowed = if allow_unknown { findings.count(Kind::Unknown) } else { 0 };
        Report {
            table: config.outbox.table.to_string(),
            since: time(range.since),
            until: time(range.until),
            reaped_until: time(at(scope.reaped_until_us)),
            topics: scope.topics.iter().map(|topic| topic.name.clone()).collect(),
            events: findings.events,
            records,
            lost: findings.count(Kind::Lost),
            reordered: findings.count(Kind::Reordered),
            altered: findings.count(Kind::Altered),
            unknown: findings.count(Kind::Unknown),
            duplicates: findings.count(Kind::Duplicate),
            broken: findings.broken() - allowed,
            not_judged: NotJudged::new(&findings, unsent, unpublishable),
            findings: findings.shown().map(|finding| FindingJson::new(finding, &scope)).collect(),
        }
    }

    pub(super) fn json(&self) -> Result<String, Failed> {
        let json = serde_json::to_string_pretty(self)
            .map_err(|error| Failed::Failure(anyhow::Error::new(error).context("writing JSON")))?;
        Ok(json + "\n")
    }
}

fn at(micros: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros.max(0).unsigned_abs())
}

impl NotJudged {
    fn new(findings: &Findings, unsent: u64, unpublishable: u64) -> NotJudged {
        let found = findings.unjudged;
        NotJudged {
            unsent,
            unpublishable,
            expired: found.expired,
            compacted: found.compacted,
            may_be_compacted: found.may_be_compacted,
            topic_missing: found.topic_missing,
            reaped: found.reaped,
            dead_letters: found.dead_letters,
            replayed: found.replayed,
            copies: found.copies,
            order: found.order,
        }
    }

    /// The counts, each with what was counted and why it is not judged.
    fn lines(&self) -> [(u64, &'static str, &'static str); 11] {
        [
            (self.unsent, "event", "not sent yet"),
            (self.unpublishable, "event", "marked as sent, but cannot be published with this configuration"),
            (self.expired, "event", "no record, but Kafka has deleted records from that time"),
            (self.compacted, "event", "no record, but the partition was compacted"),
            (
                self.may_be_compacted,
                "event",
                "no record, but the topic may be compacted; its settings are not readable",
            ),
            (self.topic_missing, "event", "the topic does not exist"),
            (self.reaped, "record", "no event, but it may have been reaped"),
            (self.dead_letters, "record", "belonging to a dead letter"),
            (self.replayed, "record", "belonging to an event that was replayed"),
            (self.copies, "record", "belonging to an event that was copied to this topic"),
            (self.order, "event", "out of order, but its first record may be gone"),
        ]
    }
}

impl FindingJson {
    fn new(finding: &Finding, scope: &Scope) -> FindingJson {
        let Finding { kind, event_id, outbox_id, topic, partition, offset, parts } = finding;
        FindingJson {
            kind: kind.word(),
            event_id: event_id.map(|id| id.to_string()),
            outbox_id: *outbox_id,
            topic: scope.topics.get(*topic as usize).map(|topic| topic.name.clone()).unwrap_or_default(),
            partition: *partition,
            offset: *offset,
            parts: parts.clone(),
        }
    }
}

impl fmt::Display for FindingJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FindingJson { kind, event_id, outbox_id, topic, partition, offset, parts } = self;
        write!(f, "{kind:<10} {topic}, partition {partition}")?;
        offset.map_or(Ok(()), |offset| write!(f, ", offset {offset}"))?;
        match event_id {
            Some(event_id) => write!(f, ": event {event_id}")?,
            None => write!(f, ": no event ID")?,
        }
        outbox_id.map_or(Ok(()), |id| write!(f, ", outbox row {id}"))?;
        if parts.is_empty() { Ok(()) } else { write!(f, ", differs in {}", parts.join(", ")) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: events created from {} to {}", self.table, self.since, self.until)?;
        let topics = counted(self.topics.len() as u64, "topic");
        let number = |number: u64| thousands(number as usize);
        writeln!(f, "  {:<10} {:>12}", "events", number(self.events))?;
        writeln!(f, "  {:<10} {:>12}  in {topics}", "records", number(self.records))?;
        for (name, count) in [
            ("lost", self.lost),
            ("reordered", self.reordered),
            ("altered", self.altered),
            ("unknown", self.unknown),
            ("duplicates", self.duplicates),
        ] {
            writeln!(f, "  {name:<10} {:>12}", number(count))?;
        }
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        for (count, what, why) in self.not_judged.lines().iter().filter(|(count, ..)| *count > 0) {
            writeln!(f, "not judged: {}: {why}", counted(*count, what))?;
        }
        Ok(())
    }
}
