//! What a comparison has found, as text and as the object of `--json`.

use super::Range;
use super::compare::Compared;
use crate::cli::output::Object;
use crate::config::Config;
use serde::Serialize;
use settings::text::{counted, thousands, time};
use std::time::{Duration, SystemTime};
use uuid::Uuid;

/// How a record, or its absence, differs from the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An event without a record.
    Lost,
    /// An event whose first record follows that of a later event of its key.
    Reordered,
    /// A record that differs from its event.
    Altered,
    /// A record that belongs to no event.
    Unknown,
    /// A further record of an event.
    Duplicate,
}

impl Kind {
    /// The worst first.
    pub(super) const ALL: [Kind; 5] =
        [Kind::Lost, Kind::Reordered, Kind::Altered, Kind::Unknown, Kind::Duplicate];

    pub(super) fn word(self) -> &'static str {
        match self {
            Kind::Lost => "lost",
            Kind::Reordered => "reordered",
            Kind::Altered => "altered",
            Kind::Unknown => "unknown",
            Kind::Duplicate => "duplicate",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub kind: Kind,
    /// `None` if the record has no readable event id.
    pub event_id: Option<Uuid>,
    /// The row; `None` for an unknown record.
    pub outbox_id: Option<i64>,
    /// The place in [`super::judge::Scope::topics`].
    pub topic: u32,
    pub partition: u32,
    /// Of the record; `None` if there is none.
    pub offset: Option<i64>,
    /// The parts of an altered record that differ.
    pub parts: Vec<&'static str>,
}

/// All findings: the counts, and the first of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// Events whose records were judged.
    pub events: u64,
    counts: [u64; Kind::ALL.len()],
    shown_max: usize,
    shown: Vec<Finding>,
    pub unjudged: Unjudged,
}

/// What could not be judged. docs/verify-and-replay.md explains each field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Unjudged {
    /// Events of the range that are not sent yet.
    pub unsent: u64,
    /// Events of the range that the relay cannot publish with the present configuration.
    pub unpublishable: u64,
    /// Events without a record, in partitions whose records have expired.
    pub expired: u64,
    /// Events without a record, in partitions that were compacted.
    pub compacted: u64,
    /// Events without a record, in partitions that may have been compacted.
    pub may_be_compacted: u64,
    /// Events without a record, in topics that do not exist.
    pub topic_missing: u64,
    /// Records without a row that may have been reaped.
    pub reaped: u64,
    pub dead_letters: u64,
    /// Further records of events that an operator replayed.
    pub replayed: u64,
    /// Copies of events in a topic other than their own.
    pub copies: u64,
    /// Events that follow a later event of their key, but whose first record may be gone.
    pub order: u64,
}

impl Findings {
    /// Keeps up to `shown_max` findings of each kind, and counts the others.
    pub(super) fn new(shown_max: usize, unjudged: Unjudged) -> Findings {
        Findings { shown_max, unjudged, ..Findings::default() }
    }

    pub(super) fn add(&mut self, finding: Finding) {
        let count = &mut self.counts[finding.kind as usize];
        *count += 1;
        if *count <= self.shown_max as u64 {
            self.shown.push(finding);
        }
    }

    pub(super) fn count(&self, kind: Kind) -> u64 {
        self.counts[kind as usize]
    }

    /// The number of findings that break a guarantee. Duplicates with the same bytes are allowed after a failure.
    pub(super) fn broken(&self) -> u64 {
        self.counts.iter().sum::<u64>() - self.count(Kind::Duplicate)
    }

    /// The first findings of each kind, worst first.
    pub(super) fn shown(&self) -> impl Iterator<Item = &Finding> {
        Kind::ALL.iter().flat_map(|kind| self.shown.iter().filter(move |finding| finding.kind == *kind))
    }
}

/// The object of `--json`.
#[derive(Serialize)]
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
    not_judged: Unjudged,
    findings: Vec<Object>,
    #[serde(skip)]
    lines: Vec<String>,
}

impl Report {
    pub(super) fn new(config: &Config, range: &Range, compared: Compared, allow_unknown: bool) -> Report {
        let Compared { scope, findings, records } = compared;
        let allowed = if allow_unknown { findings.count(Kind::Unknown) } else { 0 };
        let topic = |at: u32| scope.topics.get(at as usize).map_or("", |topic| &topic.name);
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
            not_judged: findings.unjudged,
            findings: findings.shown().map(|finding| finding_json(finding, topic(finding.topic))).collect(),
            lines: findings.shown().map(|finding| finding_text(finding, topic(finding.topic))).collect(),
        }
    }

    pub(super) fn text(&self) -> String {
        let number = |number: u64| thousands(number as usize);
        let topics = counted(self.topics.len() as u64, "topic");
        let mut text = format!("{}: events created from {} to {}\n", self.table, self.since, self.until);
        text += &format!("  {:<10} {:>12}\n", "events", number(self.events));
        text += &format!("  {:<10} {:>12}  in {topics}\n", "records", number(self.records));
        for (name, count) in [
            ("lost", self.lost),
            ("reordered", self.reordered),
            ("altered", self.altered),
            ("unknown", self.unknown),
            ("duplicates", self.duplicates),
        ] {
            text += &format!("  {name:<10} {:>12}\n", number(count));
        }
        text += &self.lines.concat();
        for (count, what, why) in self.not_judged.lines().iter().filter(|(count, ..)| *count > 0) {
            text += &format!("not judged: {}: {why}\n", counted(*count, what));
        }
        text
    }
}

fn at(micros: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros.max(0).unsigned_abs())
}

impl Unjudged {
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

fn finding_json(finding: &Finding, topic: &str) -> Object {
    let Finding { kind, event_id, outbox_id, partition, offset, parts, .. } = finding;
    Object(vec![
        ("kind", kind.word().into()),
        ("event_id", event_id.map(|id| id.to_string()).into()),
        ("outbox_id", (*outbox_id).into()),
        ("topic", topic.into()),
        ("partition", (*partition).into()),
        ("offset", (*offset).into()),
        ("parts", parts.clone().into()),
    ])
}

fn finding_text(finding: &Finding, topic: &str) -> String {
    let Finding { kind, event_id, outbox_id, partition, offset, parts, .. } = finding;
    let offset = offset.map_or(String::new(), |offset| format!(", offset {offset}"));
    let event = event_id.map_or("no event ID".to_owned(), |event_id| format!("event {event_id}"));
    let row = outbox_id.map_or(String::new(), |id| format!(", outbox row {id}"));
    let parts = if parts.is_empty() { String::new() } else { format!(", differs in {}", parts.join(", ")) };
    format!("{:<10} {topic}, partition {partition}{offset}: {event}{row}{parts}\n", kind.word())
}
