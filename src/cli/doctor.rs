//! `outbox-relay doctor`: lists problems with their meanings and fixes. It never writes.

use super::failed::Failed;
use super::frame::{ConfigFile, block_on, monitoring_database, renamed};
use super::output::{self, Object, counted};
use super::status::local_relay;
use crate::config::Config;
use clap::Args;
use kafka::cluster::KafkaCluster;
use postgres::connection::exec::ShortTransaction;
use postgres::connection::pool::Database;
use postgres::diagnose::doctor::{Examined, Settings, events, session};
use postgres::schema::errors;
use postgres::schema::identity::{self, Identity};
use serde::Serialize;
use settings::codes;
use settings::doctor::{Code, Finding, Severity, TopicInUse};
use settings::text::{commands, in_line};
use std::cmp::Reverse;

codes! {
    OTHER_CLUSTER = Error, "other-cluster",
        "the outbox belongs to another PostgreSQL or Kafka cluster: this is a copy, or the outbox has moved; the relay stops \
         and publishes nothing";
    SYSTEM_HIDDEN = Note, "system-identifier-hidden",
        "the server does not show its system identifier, so a relay of a copy of the database is not stopped";
    RELAY_NOTE = Note, "relay-note",
        "the relay on this host is ready, and reports something that consumers may notice";
}

/// Texts from servers, and names, are cut to this length.
const TEXT_SHOWN: usize = 2_000;

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/doctor.txt").trim_ascii_end())]
pub(crate) struct Doctor {
    /// Print a JSON object. Later versions may add fields, but never rename or remove them.
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(crate) fn run(self, file: &ConfigFile) -> Result<(), Failed> {
        let config = file.load()?;
        let cluster = config.cluster()?;
        cluster.check_settings()?;
        let Examined { findings, .. } = block_on(examine(&config, &cluster, "doctor", &[]))??;
        let report = Report::new(&config, &findings);
        output::text(if self.json { output::pretty_json(&report)? } else { report.text(&findings) })?;
        match report.errors {
            0 => Ok(()),
            errors => Err(Failed::failure(counted(errors, "error") + " found")),
        }
    }
}

/// Examines everything, and sorts the findings, worst first. `topics` are checked in addition to those of events.
pub(super) async fn examine(
    config: &Config,
    cluster: &KafkaCluster,
    command: &str,
    topics: &[String],
) -> Result<Examined, Failed> {
    let database = monitoring_database(config, command)?;
    let (relay_name, _) = renamed(config, command)?;
    let reserved = config.outbox.headers.iter().filter(|header| header.is_reserved());
    let settings = Settings {
        postgres: &config.postgres,
        table: &config.outbox.table,
        topics: (&config.outbox).into(),
        on_sent: config.outbox.on_sent,
        reserved_headers: reserved.map(|header| header.name.clone()).collect(),
        batch_rows: config.relay.batch_size,
        publish_timeout: config.relay.publish_timeout,
        claim_within: config.relay.flow_window + config.relay.publish_timeout,
        relay_name,
        record_bytes_max: cluster.record_bytes_max(),
    };
    let mut examined = postgres::diagnose::doctor::examine(&settings, &database).await?;
    for topic in topics {
        if !examined.topics.iter().any(|used| used.topic == *topic) {
            examined.topics.push(TopicInUse::new(topic.clone(), true));
        }
    }
    let Examined { findings, topics } = &mut examined;
    findings.extend(kafka::operate::doctor::examine(&config.kafka, cluster, topics).await);
    findings.extend(clusters(config, &database, cluster).await?);
    findings.extend(local_note(config).await);
    findings.sort_by_key(|finding| Reverse(finding.code.severity));
    Ok(examined)
}

/// Compares the clusters with those that the outbox belongs to. Another check reports a missing privilege.
async fn clusters(
    config: &Config,
    database: &Database,
    cluster: &KafkaCluster,
) -> Result<Vec<Finding>, Failed> {
    let table = &config.outbox.table;
    let recorded =
        identity::recorded(&ShortTransaction::reading(database.clone()), table).await.unwrap_or_default();
    let system = identity::system(database).await?;
    let mut findings = Vec::new();
    if system.is_none() {
        let remedy = "if the service allows it, let the role execute the function";
        findings.push(SYSTEM_HIDDEN.found("the server", "pg_control_system() is not available", remedy));
    }
    let found = Identity { system, kafka: cluster.comparison().answered() };
    findings.extend(recorded.mismatches(&found).iter().map(|mismatch| {
        let remedy = format!(
            "correct the configuration. If the outbox has moved here, read docs/moving.md, then run `outbox-relay confirm \
             {} --config FILE`",
            mismatch.option
        );
        OTHER_CLUSTER.found(table, mismatch.to_string(), remedy)
    }));
    Ok(findings)
}

/// What the relay on this host reports while it is ready.
async fn local_note(config: &Config) -> Option<Finding> {
    let here = local_relay(config.admin.listen).await.filter(|here| here.ready)?;
    let note = here.says.strip_prefix("ready; ")?;
    let remedy = match note.starts_with("throttled") {
        true => {
            "nothing, if the rate suffices. Otherwise, raise the quota of the relay's Kafka user (docs/failures.md, Quota)"
        }
        false => {
            "nothing, if the change was planned. docs/record-format.md (Changing the number of partitions) has the procedure \
             that keeps the order of each key"
        }
    };
    Some(RELAY_NOTE.found(format!("relay at {}", here.address), note, remedy))
}

/// Every code, in the order of `docs/doctor.md`.
pub fn all() -> impl Iterator<Item = &'static Code> {
    let found = [errors::CODES, session::CODES, kafka::operate::doctor::CODES, events::CODES, CODES];
    found.into_iter().chain([settings::doctor::CODES]).flatten().copied()
}

/// The object of `--json`.
#[derive(Serialize)]
struct Report {
    table: String,
    relay_version: &'static str,
    errors: u64,
    warnings: u64,
    notes: u64,
    findings: Vec<Object>,
}

impl Report {
    fn new(config: &Config, findings: &[Finding]) -> Report {
        let count =
            |severity| findings.iter().filter(|finding| finding.code.severity == severity).count() as u64;
        let json = |Finding { code, place, problem, remedy }: &Finding| {
            Object(vec![
                ("severity", code.severity.word().into()),
                ("code", code.word.into()),
                ("place", place.as_str().into()),
                ("problem", problem.as_str().into()),
                ("means", code.means.into()),
                ("remedy", commands(remedy).into()),
            ])
        };
        Report {
            table: config.outbox.table.to_string(),
            relay_version: env!("CARGO_PKG_VERSION"),
            errors: count(Severity::Error),
            warnings: count(Severity::Warning),
            notes: count(Severity::Note),
            findings: findings.iter().map(json).collect(),
        }
    }

    fn text(&self, findings: &[Finding]) -> String {
        let mut text = String::new();
        let shown = |text: &str| in_line(text, TEXT_SHOWN);
        for Finding { code, place, problem, remedy } in findings {
            text += &format!("{:<8} {}  {}\n", code.severity.word(), code.word, shown(place));
            text += &format!("         {}\n", shown(problem));
            text += &format!("         means: {}\n", code.means);
            text += &format!("         fix:   {}\n", shown(&commands(remedy)));
        }
        let table = &self.table;
        if findings.is_empty() {
            return format!("{table}: no problems found ({} checks)\n", all().count());
        }
        let (errors, warnings) = (counted(self.errors, "error"), counted(self.warnings, "warning"));
        text + &format!("{table}: {errors}, {warnings}, {}\n", counted(self.notes, "note"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_code_has_a_unique_word_and_a_meaning() {
        let mut words = HashSet::new();
        for code in all() {
            assert!(words.insert(code.word), "{} twice", code.word);
            assert!(code.word.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{}", code.word);
            assert!(!code.means.is_empty() && !code.means.ends_with('.'), "{}", code.word);
        }
    }
}
