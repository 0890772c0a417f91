//! `outbox-relay doctor`: lists problems with their meanings and fixes. It never writes.

use super::frame::{ConfigFile, Failed, block_on, monitoring_database};
use super::output::{self, Object, counted};
use super::status::local_relay;
use crate::config::Config;
use crate::doctor::{self, OTHER_CLUSTER, RELAY_NOTE, SYSTEM_HIDDEN};
use clap::Args;
use kafka::cluster::KafkaCluster;
use postgres::connection::exec::ShortTransaction;
use postgres::connection::pool::Database;
use postgres::diagnose::doctor::Settings;
use postgres::schema::identity::{self, Identity};
use serde::Serialize;
use settings::doctor::{Finding, Severity, TopicInUse};
use settings::text::{commands, in_line};
use std::cmp::Reverse;

/// Texts from servers, and names, are cut to this length.
const TEXT_SHOWN: usize = 2_000;

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/doctor.txt").trim_ascii_end())]
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
        let cluster = config.cluster()?;
        cluster.check_settings()?;
        let Diagnosis { findings, .. } = block_on(examine(&config, &cluster, "doctor", &[]))??;
        let report = Report::new(&config, &findings);
        output::text(if self.json { output::pretty_json(&report)? } else { report.text(&findings) })?;
        match report.errors {
            0 => Ok(()),
            errors => Err(Failed::failure(counted(errors, "error") + " found")),
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
    let database = monitoring_database(config, command)?;
    let reserved = config.outbox.headers.iter().filter(|header| header.is_reserved());
    let settings = Settings {
        postgres: &config.postgres,
        table: &config.outbox.table,
        topics: (&config.outbox).into(),
        on_sent: config.outbox.on_sent,
        reserved_headers: reserved.map(|header| header.name.clone()).collect(),
        batch_rows: config.relay.batch_size,
        publish_timeout: config.relay.publish_timeout,
        record_bytes_max: cluster.record_bytes_max(),
    };
    let mut examined = postgres::diagnose::doctor::examine(&settings, &database).await?;
    for topic in topics {
        if !examined.topics.iter().any(|used| used.topic == *topic) {
            let topic = topic.clone();
            examined.topics.push(TopicInUse { topic, has_events: true, waiting: 0, largest_bytes: 0 });
        }
    }
    let mut findings = examined.findings;
    findings.extend(kafka::operate::doctor::examine(&config.kafka, cluster, &examined.topics).await);
    findings.extend(clusters(config, &database, cluster).await?);
    findings.extend(local_note(config).await);
    findings.sort_by_key(|finding| Reverse(finding.code.severity));
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
    let system = identity::system(database).await?;
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
    let here = local_relay(config.admin.listen).await.filter(|here| here.ready)?;
    let note = here.says.strip_prefix("ready; ")?;
    let remedy = "nothing, if the change was planned. docs/record-format.md (Changing the number of partitions) has the \
                  procedure that keeps the order of each key";
    Some(RELAY_NOTE.found(format!("relay at {}", here.address), note, remedy))
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
            return format!("{table}: no problems found ({} checks)\n", doctor::all().count());
        }
        let (errors, warnings) = (counted(self.errors, "error"), counted(self.warnings, "warning"));
        text + &format!("{table}: {errors}, {warnings}, {}\n", counted(self.notes, "note"))
    }
}
