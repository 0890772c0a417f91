//! `outbox-relay check-config`: everything that is wrong, before a deployment.

use super::doctor::{self, Examined};
use super::exit::Failed;
use super::{ConfigFile, block_on, one_shot};
use crate::config::Config;
use crate::doctor::codes::{EVENT_HEADERS, EVENT_TOO_LARGE, EVENT_TOPIC_NAME};
use crate::doctor::{self as finding, Finding};
use crate::kafka::cluster::KafkaCluster;
use crate::relay::failure::Failure;
use crate::relay::publisher::Publisher;
use crate::relay::reason::remedy;
use clap::Args;

/// Validate the configuration.
#[derive(Debug, Args)]
#[command(after_help = "\
Checks every setting, the files of secrets and certificates, and the librdkafka properties. Reports all problems at \
once, with their line numbers. Without --connect, it opens no connections.

With --connect, it also checks that PostgreSQL and Kafka are reachable, and runs the checks of `doctor`: schema, \
grants, TLS, query plan and topics. It changes nothing, so it cannot test whether the user may write to a topic. \
Problems that stop the relay are errors. An event that can never be sent is only a warning, because other events \
continue.

Examples:
  outbox-relay check-config --config config.toml
  outbox-relay check-config --config config.toml --connect && systemctl restart outbox-relay

Exit codes: 0 valid, 2 usage error, 69 PostgreSQL or Kafka unreachable, 78 invalid configuration, schema or topic.")]
pub struct CheckConfig {
    #[command(flatten)]
    config: ConfigFile,
    /// Also check PostgreSQL, Kafka and the topics.
    #[arg(long)]
    connect: bool,
}

impl CheckConfig {
    /// Runs it.
    pub fn run(self) -> Result<(), Failed> {
        let config = self.config.load()?;
        let cluster = KafkaCluster::new(&config.kafka, &config.outbox, &config.relay)
            .map_err(|failure| unusable(&failure))?;
        cluster.check_settings().map_err(|failure| unusable(&failure))?;
        say("configuration", "is valid");
        if !self.connect {
            return Ok(());
        }
        match block_on(connect(&config, &cluster))?.worst {
            None => Ok(()),
            Some(Severity::Unavailable) => {
                Err(Failed::Unavailable(anyhow::anyhow!("PostgreSQL or Kafka is unreachable")))
            }
            Some(Severity::Mend) => Err(Failed::Configuration(anyhow::anyhow!(
                "The relay cannot run until these errors are fixed."
            ))),
        }
    }
}

fn unusable(failure: &Failure) -> Failed {
    Failed::Configuration(anyhow::anyhow!("[kafka.properties] is invalid: {failure}"))
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Severity {
    Unavailable,
    Mend,
}

/// What was found so far. Says each finding at once.
#[derive(Default)]
struct Findings {
    worst: Option<Severity>,
}

impl Findings {
    fn add(&mut self, what: &str, severity: Severity, text: &str) {
        say(what, text);
        self.worst = self.worst.max(Some(severity));
    }

    fn add_failed(&mut self, what: &str, failed: Failed) {
        match failed {
            Failed::Unavailable(error) => self.add(what, Severity::Unavailable, &format!("{error:#}")),
            Failed::Failure(error) | Failed::Configuration(error) => {
                self.add(what, Severity::Mend, &format!("{error:#}"));
            }
            Failed::Usage(text) => self.add(what, Severity::Mend, &text),
        }
    }
}

fn say(what: &str, text: &str) {
    println!("{what:<14} {text}");
}

async fn connect(config: &Config, cluster: &KafkaCluster) -> Findings {
    let mut findings = Findings::default();
    check_postgres(config, &mut findings).await;
    match cluster.probe().await {
        Ok(()) => say("kafka", &format!("answers at {}", config.kafka.bootstrap_servers)),
        Err(failure) => {
            let text = format!("{failure}. Fix: {}", remedy(failure.reason));
            let severity = match failure.reason {
                "configuration" | "authentication" | "token" | "tls" => Severity::Mend,
                _ => Severity::Unavailable,
            };
            findings.add("kafka", severity, &text);
        }
    }
    // Otherwise it would find the same once more.
    if findings.worst.is_none() {
        match doctor::examine(config, cluster, "check-config").await {
            Ok(examined) => tell(&examined, &mut findings),
            Err(failed) => findings.add_failed("postgres", failed),
        }
    }
    findings
}

async fn check_postgres(config: &Config, findings: &mut Findings) {
    let facts = match one_shot::database(config) {
        Ok(database) => one_shot::checked(config, &database).await,
        Err(failed) => Err(failed),
    };
    let facts = match facts {
        Ok(found) => found,
        Err(failed) => {
            let what = if matches!(failed, Failed::Configuration(_)) { "schema" } else { "postgres" };
            return findings.add_failed(what, failed);
        }
    };
    let (major, minor) = (facts.server_version_num / 10_000, facts.server_version_num % 10_000);
    say("postgres", &format!("answers, version {major}.{minor}"));
    say("schema", &format!("{} is valid", config.outbox.table));
}

/// What the doctor found, but for its notes.
fn tell(examined: &Examined, findings: &mut Findings) {
    match examined.topics {
        0 => say("topics", "none checked: no event is waiting or was sent recently"),
        topics => say("topics", &format!("{topics} checked")),
    }
    let (mut errors, mut warnings) = (0, 0);
    for found in &examined.findings {
        let Finding { code, place, problem, remedy } = found;
        // The relay runs all the same: it sets such an event aside.
        let one_event =
            [&EVENT_HEADERS, &EVENT_TOO_LARGE, &EVENT_TOPIC_NAME].iter().any(|event| event.word == code.word);
        match code.severity {
            finding::Severity::Error if !one_event => {
                errors += 1;
                findings.add("error", Severity::Mend, &format!("{place}: {problem}. Fix: {remedy}"));
            }
            finding::Severity::Error | finding::Severity::Warning => {
                warnings += 1;
                say("warning", &format!("{place}: {problem}"));
            }
            finding::Severity::Note => {}
        }
    }
    match (errors, warnings) {
        (0, 0) => say("doctor", "no problems found"),
        _ => {
            say(
                "doctor",
                &format!("errors: {errors}, warnings: {warnings}. For details, run: outbox-relay doctor"),
            );
        }
    }
}
