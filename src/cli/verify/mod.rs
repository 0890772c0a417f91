//! `outbox-relay verify`: compares the events of a time range with the records in Kafka.
//!
//! Rows and records become entries of a fixed size. They are sorted by event id in temporary files, so memory does not depend
//! on their number. One pass over the sorted entries finds lost, repeated, altered and unknown records. What it learns about
//! the order is sorted by key, and a second pass finds reordered events.

mod compare;
mod entries;
mod judge;

use super::arguments::{Moment, moment};
use super::failed::Failed;
use super::frame::{ConfigFile, Outbox, keeps_history, on_outbox};
use super::output::{self, Object, counted};
use crate::config::{Config, Part};
use clap::Args;
use compare::{Task, Topics, compare};
use judge::{Finding, Findings, Kind, Scope, Unjudged};
use kafka::cluster::KafkaCluster;
use kafka::operate::reader::{ReadError, TopicReader};
use postgres::access::grants::VERIFY_PRIVILEGES;
use relay::reason::{fix, remedy};
use serde::Serialize;
use settings::text::{thousands, time};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/verify.txt").trim_ascii_end())]
pub(crate) struct Verify {
    /// Verify events created at or after this time: a duration before now, such as 2h, or a time in UTC, such as
    /// 2026-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", default_value = "1h", allow_hyphen_values = true, value_parser = moment)]
    since: Moment,
    /// Verify events created before this time [default: now].
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = moment)]
    until: Option<Moment>,
    /// Verify only these topics, separated by commas [default: the topics of all events in the range].
    #[arg(long, value_delimiter = ',')]
    topic: Vec<String>,
    /// Report unknown records without failing, for topics to which other producers publish too.
    #[arg(long)]
    allow_unknown: bool,
    /// Show at most this many findings of each kind. All are counted.
    #[arg(long, value_name = "N", default_value_t = 10)]
    limit: usize,
    /// Directory for temporary files [default: $TMPDIR or /tmp].
    #[arg(long, value_name = "DIR")]
    temp_dir: Option<PathBuf>,
    /// Print a JSON object. Later versions may add fields, but never rename or remove them.
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub(crate) fn run(self, file: &ConfigFile) -> Result<(), Failed> {
        let config = file.load()?;
        let id_header = id_header(&config)?;
        let cluster = config.cluster()?;
        cluster.check_settings()?;
        let report = on_outbox(&config, VERIFY_PRIVILEGES, async |outbox| {
            self.verify(&outbox, &cluster, &id_header).await
        })?;
        output::text(if self.json { output::pretty_json(&report)? } else { report.text() })?;
        match report.broken {
            0 => Ok(()),
            broken => Err(Failed::failure(counted(broken, "guarantee violation") + " found")),
        }
    }

    /// The directory for temporary files. A mistake shows before anything is read.
    fn folder(&self) -> Result<PathBuf, Failed> {
        let folder = self.temp_dir.clone().unwrap_or_else(std::env::temp_dir);
        match tempfile::tempfile_in(&folder) {
            Ok(_) => Ok(folder),
            Err(error) => Err(Failed::Usage(format!(
                "Cannot write temporary files in {}: {error}. Choose another directory with --temp-dir.",
                folder.display()
            ))),
        }
    }

    async fn verify(
        &self,
        outbox: &Outbox<'_>,
        cluster: &KafkaCluster,
        id_header: &str,
    ) -> Result<Report, Failed> {
        let config = outbox.config;
        let bounds = outbox.history().bounds().await?;
        let range = Range::new(self.since, self.until, bounds.now)?;
        let cluster_id = cluster.id().await?;
        if let Some(failure) = cluster.unusable_addresses().await {
            output::note(&format!("warning: {failure}. {}", fix(remedy(failure.reason))));
        }
        if let Some(problem) = outbox.other_clusters(Some(cluster_id)).await? {
            output::note(&format!("warning: {problem}"));
        }
        let reader = TopicReader::new(&config.kafka, id_header)?;
        let topics = Topics::new(Arc::new(reader), &self.topic).await?;
        let task = Task { outbox, cluster, range, bounds, folder: self.folder()?, shown_max: self.limit };
        let (scope, findings) = compare(&task, topics).await?;
        Ok(Report::new(config, &range, scope, &findings, self.allow_unknown))
    }
}

/// The header that identifies the event of a record.
fn id_header(config: &Config) -> Result<String, Failed> {
    keeps_history(config)?;
    let header = config.outbox.headers.iter().find(|header| header.value == [Part::EventId]);
    header.map(|header| header.name.clone()).ok_or_else(|| {
        Failed::configuration(
            "Records cannot be matched with events: no header in [outbox.headers] is {event_id}. Add event_id = \
             \"{event_id}\".",
        )
    })
}

impl From<ReadError> for Failed {
    fn from(error: ReadError) -> Failed {
        match error {
            ReadError::Kafka(failure) => failure.into(),
            ReadError::Denied(_) => Failed::Configuration(error.into()),
            ReadError::Expired(_) | ReadError::Files(_) => Failed::Failure(error.into()),
        }
    }
}

/// The time range, by the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    since: SystemTime,
    until: SystemTime,
    /// The server's time when the command began.
    now: SystemTime,
}

impl Range {
    /// The range at this time of the server.
    fn new(since: Moment, until: Option<Moment>, now: SystemTime) -> Result<Range, Failed> {
        let (since, until) = (since.at(now)?, until.map_or(Ok(now), |until| until.at(now))?);
        if since >= now {
            return Err(Failed::Usage("--since is in the future.".to_owned()));
        }
        if since >= until {
            return Err(Failed::Usage("--since must be before --until.".to_owned()));
        }
        Ok(Range { since, until: until.min(now), now })
    }
}

/// Microseconds since 1970.
fn micros(at: SystemTime) -> i64 {
    match at.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |micros| -micros),
    }
}

fn at(micros: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros.max(0).unsigned_abs())
}

/// The object of `--json`.
#[derive(Serialize)]
struct Report {
    table: String,
    since: String,
    until: String,
    /// Rows that were sent before this time may have been reaped.
    reaped_until: String,
    topics: Vec<String>,
    /// Events of the range that were sent.
    events: u64,
    records: u64,
    #[serde(flatten)]
    counts: Object<u64>,
    /// The number of findings that break a guarantee.
    broken: u64,
    not_judged: Unjudged,
    findings: Vec<Finding>,
}

impl Report {
    fn new(config: &Config, range: &Range, scope: Scope, findings: &Findings, allow_unknown: bool) -> Report {
        let allowed = if allow_unknown { findings.count(Kind::Unknown) } else { 0 };
        let counts = [
            ("lost", Kind::Lost),
            ("reordered", Kind::Reordered),
            ("altered", Kind::Altered),
            ("unknown", Kind::Unknown),
            ("duplicates", Kind::Duplicate),
        ];
        Report {
            table: config.outbox.table.to_string(),
            since: time(range.since),
            until: time(range.until),
            reaped_until: time(at(scope.reaped_until_us)),
            topics: scope.topics.into_iter().map(|topic| topic.name).collect(),
            events: findings.events,
            records: findings.records,
            counts: Object(counts.map(|(name, kind)| (name, findings.count(kind))).to_vec()),
            broken: findings.broken() - allowed,
            not_judged: findings.unjudged,
            findings: findings.shown().cloned().collect(),
        }
    }

    fn text(&self) -> String {
        let number = |number: u64| thousands(number as usize);
        let topics = counted(self.topics.len() as u64, "topic");
        let mut text = format!("{}: events created from {} to {}\n", self.table, self.since, self.until);
        text += &format!("  {:<10} {:>12}\n", "events", number(self.events));
        text += &format!("  {:<10} {:>12}  in {topics}\n", "records", number(self.records));
        for (name, count) in &self.counts.0 {
            text += &format!("  {name:<10} {:>12}\n", number(*count));
        }
        self.findings.iter().for_each(|finding| text += &line(finding));
        for (count, what, why) in reasons(&self.not_judged).iter().filter(|(count, ..)| *count > 0) {
            text += &format!("not judged: {}: {why}\n", counted(*count, what));
        }
        text
    }
}

fn line(finding: &Finding) -> String {
    let Finding { kind, event_id, outbox_id, topic, partition, offset, parts } = finding;
    let kind = format!("{kind:?}").to_lowercase();
    let offset = offset.map_or(String::new(), |offset| format!(", offset {offset}"));
    let event = event_id.as_ref().map_or("no event ID".to_owned(), |event_id| format!("event {event_id}"));
    let row = outbox_id.map_or(String::new(), |id| format!(", outbox row {id}"));
    let parts = if parts.is_empty() { String::new() } else { format!(", differs in {}", parts.join(", ")) };
    format!("{kind:<10} {topic}, partition {partition}{offset}: {event}{row}{parts}\n")
}

/// The counts of what is not judged, each with what was counted and why it is not judged.
fn reasons(unjudged: &Unjudged) -> [(u64, &'static str, &'static str); 11] {
    [
        (unjudged.unsent, "event", "not sent yet"),
        (unjudged.unpublishable, "event", "marked as sent, but cannot be published with this configuration"),
        (unjudged.expired, "event", "no record, but Kafka has deleted records from that time"),
        (unjudged.compacted, "event", "no record, but the partition was compacted"),
        (
            unjudged.may_be_compacted,
            "event",
            "no record, but the topic may be compacted; its settings are not readable",
        ),
        (unjudged.topic_missing, "event", "the topic does not exist"),
        (unjudged.reaped, "record", "no event, but it may have been reaped"),
        (unjudged.dead_letters, "record", "belonging to a dead letter"),
        (unjudged.replayed, "record", "belonging to an event that was replayed"),
        (unjudged.copies, "record", "belonging to an event that was copied to this topic"),
        (unjudged.order, "event", "out of order, but its first record may be gone"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn resolved(since: &str, until: Option<&str>) -> Result<Range, String> {
        let now = NOW + Duration::from_secs(1_000_000);
        let until = until.map(|until| moment(until).unwrap());
        Range::new(moment(since).unwrap(), until, now).map_err(|failed| match failed {
            Failed::Usage(text) => text,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn durations_and_times_are_accepted() {
        let since = |seconds| NOW + Duration::from_secs(seconds);
        let now = since(1_000_000);
        assert_eq!(resolved("1h", None), Ok(Range { since: since(996_400), until: now, now }));
        let range = Range { since: since(60), until: since(999_940), now };
        assert_eq!(resolved("1970-01-01T00:01:00Z", Some("60s")), Ok(range));
        assert_eq!(resolved("1h", Some("2100-01-01 00:00:00")).unwrap().until, now, "the future is empty");
    }

    #[test]
    fn impossible_ranges_are_refused() {
        assert_eq!(resolved("1h", Some("2h")).unwrap_err(), "--since must be before --until.");
        assert_eq!(resolved("1h", Some("1h")).unwrap_err(), "--since must be before --until.");
        assert_eq!(resolved("2100-01-01T00:00:00Z", None).unwrap_err(), "--since is in the future.");
        assert!(resolved("100years", None).unwrap_err().starts_with("100years before now is before 1970"));
        for text in ["", "yesterday", "2026-13-01T00:00:00Z", "-1h", "5"] {
            assert!(moment(text).is_err(), "{text}");
        }
    }
}
