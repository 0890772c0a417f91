//! `outbox-relay doctor`: lists problems with their meanings and fixes. It never writes.

mod report;

use super::exit::Failed;
use super::one_shot;
use super::status::local_relay;
use super::terminal::output;
use super::{ConfigFile, block_on};
use crate::config::Config;
use clap::Args;
use kafka::cluster::KafkaCluster;
use postgres::connection::connect::Database;
use postgres::connection::transaction::ShortTransaction;
use postgres::schema::identity::{self, Identity};
use relay::failure::Failure;
use report::Report;
use settings::doctor::{Code, Finding, TopicInUse};

settings::codes! {
    OTHER_CLUSTER = Error, "other-cluster",
        "the outbox belongs to another PostgreSQL or Kafka cluster: this is a copy, or the outbox has moved; the relay stops \
         and publishes nothing";
    SYSTEM_HIDDEN = Note, "system-identifier-hidden",
        "the server does not show its system identifier, so a relay of a copy of the database is not stopped";
    RELAY_NOTE = Note, "relay-note",
        "the relay on this host is ready, and reports a change that consumers may notice";
}

/// Every code, in the order of `docs/doctor.md`.
pub fn all() -> impl Iterator<Item = &'static Code> {
    use postgres::diagnose::doctor::{connection, events, privileges, table};
    let groups = [
        table::CODES,
        privileges::CODES,
        connection::CODES,
        kafka::operate::doctor::CODES,
        events::CODES,
        CODES,
        settings::doctor::CODES,
    ];
    groups.into_iter().flatten().copied()
}

/// The code with this word.
pub fn code(word: &str) -> Option<&'static Code> {
    all().find(|code| code.word == word)
}

/// Diagnose the database, topics and events.
#[derive(Debug, Args)]
#[command(after_help = "\
Each finding has a severity (error, warning, note), a code, an explanation and a fix. docs/doctor.md lists the codes. \
The command writes nothing: every transaction is READ ONLY, and no event is published. Every query is bounded: only \
the oldest unsent rows and the latest rows are examined.

If Kafka is unreachable, the command reports a finding and still checks the database.

Examples:
  outbox-relay doctor --config /etc/outbox-relay/config.toml
  outbox-relay doctor --config config.toml --json | jq -r '.findings[] | select(.severity == \"error\") | .remedy'

Exit codes: 0 no errors found, 1 errors found, 2 usage error, 69 PostgreSQL unreachable, 78 invalid configuration.")]
pub(crate) struct Doctor {
    #[command(flatten)]
    config: ConfigFile,
    /// Print a JSON object. Later versions may add fields, but never rename or remove them.
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(crate) fn run(self) -> Result<(), Failed> {
        let config = self.config.load()?;
        let unusable = |failure: Failure| {
            Failed::Configuration(anyhow::anyhow!("[kafka.properties] is invalid: {}", failure.error))
        };
        let cluster = config.cluster().map_err(unusable)?;
        cluster.check_settings().map_err(unusable)?;
        let Diagnosis { findings, .. } = block_on(examine(&config, &cluster, "doctor", &[]))??;
        let report = Report::new(&config, &findings);
        let text = if self.json { report.json()? } else { report.to_string() };
        output::print(text.as_bytes())?;
        match report.errors {
            0 => Ok(()),
            1 => Err(Failed::Failure(anyhow::anyhow!("1 error found"))),
            errors => Err(Failed::Failure(anyhow::anyhow!("{errors} errors found"))),
        }
    }
}

/// The result of all checks.
pub(super) struct Diagnosis {
    /// Worst first.
    pub(super) findings: Vec<Finding>,
    /// The number of topics that were checked.
    pub(super) topics: usize,
}

/// Examines everything. `topics` are checked in addition to those of events.
pub(super) async fn examine(
    config: &Config,
    cluster: &KafkaCluster,
    command: &str,
    topics: &[String],
) -> Result<Diagnosis, Failed> {
    let database = one_shot::monitoring_database(config, command)?;
    let reserved = config.outbox.headers.iter().filter(|header| header.is_reserved());
    let settings = postgres::diagnose::doctor::Settings {
        postgres: &config.postgres,
        table: &config.outbox.table,
        topics: (&config.outbox).into(),
        on_sent: config.outbox.on_sent,
        reserved_headers: reserved.map(|header| header.name.clone()).collect(),
        batch_rows: config.relay.batch_size,
        publish_timeout: config.relay.publish_timeout,
        record_bytes_max: cluster.record_bytes_max(),
    };
    let examined = postgres::diagnose::doctor::examine(&settings, &database).await;
    let mut examined = examined.map_err(one_shot::fault)?;
    for topic in topics {
        if !examined.topics.iter().any(|used| used.topic == *topic) {
            examined.topics.push(TopicInUse {
                topic: topic.clone(),
                has_events: true,
                waiting: 0,
                largest_bytes: 0,
            });
        }
    }
    let mut findings = examined.findings;
    findings.extend(kafka::operate::doctor::examine(&config.kafka, cluster, &examined.topics).await);
    findings.extend(clusters(config, &database, cluster).await?);
    findings.extend(local_note(config).await);
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.code.severity));
    Ok(Diagnosis { findings, topics: examined.topics.len() })
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
    let system = identity::system(database).await.map_err(one_shot::fault)?;
    let mut findings = Vec::new();
    if system.is_none() {
        let remedy = "if the service allows it, let the role execute the function";
        findings.push(SYSTEM_HIDDEN.found("the server", "pg_control_system() is not available", remedy));
    }
    let found = Identity { system, kafka: cluster.comparison().answered() };
    findings.extend(recorded.mismatches(&found).iter().map(|mismatch| {
        let option = mismatch.option();
        let remedy = format!(
            "correct the configuration. If the outbox has moved here, read docs/moving.md, then run `outbox-relay confirm \
             {option} --config FILE`"
        );
        OTHER_CLUSTER.found(table.to_string(), mismatch.to_string(), remedy)
    }));
    Ok(findings)
}

/// What the relay on this host reports while it is ready.
async fn local_note(config: &Config) -> Option<Finding> {
    let here = local_relay::request(config.admin.listen).await.filter(|here| here.ready)?;
    let note = here.says.strip_prefix("ready; ")?;
    let remedy = "nothing, if the change was planned. docs/record-format.md (Changing the number of partitions) has the \
                  procedure that keeps the order of each key";
    Some(RELAY_NOTE.found(format!("relay at {}", here.address), note, remedy))
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
            assert_eq!(super::code(code.word), Some(code));
        }
    }
}
