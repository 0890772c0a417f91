//! `outbox-relay check-config`: everything that is wrong, before a deployment.

use super::exit::Failed;
use super::run::MORE_THAN_NEEDED;
use super::{ConfigFile, block_on, one_shot};
use crate::config::Config;
use crate::kafka::cluster::KafkaCluster;
use crate::postgres::connect::Database;
use crate::postgres::status::PostgresStatus;
use crate::relay::failure::{Failure, FailureKind};
use crate::relay::publisher::{Producer, Publisher};
use crate::relay::reason::remedy;
use clap::Args;

/// Check the configuration, and with --connect what it leads to.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --connect nothing is connected to: every setting is checked, every file of a secret or certificate opened, and \
librdkafka asked whether it takes the properties. Everything that is wrong is shown at once, with its line.

With --connect also: Postgres answers and has the right schema and grants, Kafka answers, and the topics of the events \
that wait exist. One line a check, and nothing is changed.

Examples:
  outbox-relay check-config --config config.toml
  outbox-relay check-config --config config.toml --connect && systemctl restart outbox-relay

Exit codes: 0 all is well, 2 usage, 69 Postgres or Kafka cannot be reached, 78 the configuration, the schema or a topic \
has to be mended.")]
pub struct CheckConfig {
    #[command(flatten)]
    config: ConfigFile,
    /// Connect to Postgres and Kafka.
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
                Err(Failed::Unavailable(anyhow::anyhow!("a server that the relay needs cannot be reached")))
            }
            Some(Severity::Mend) => Err(Failed::Configuration(anyhow::anyhow!(
                "something has to be mended before the relay can run"
            ))),
        }
    }
}

fn unusable(failure: &Failure) -> Failed {
    Failed::Configuration(anyhow::anyhow!("[kafka.properties] cannot be used: {failure}"))
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
    let waiting = check_postgres(config, &mut findings).await;
    let kafka = cluster.probe().await;
    match kafka {
        Ok(()) => {
            say("kafka", &format!("answers at {}", config.kafka.bootstrap_servers));
            if let Some(types) = waiting {
                check_topics(config, cluster, &types, &mut findings).await;
            }
        }
        Err(failure) => {
            let text = format!("{failure}; {}", remedy(failure.reason));
            let severity = match failure.reason {
                "configuration" | "authentication" | "token" | "tls" => Severity::Mend,
                _ => Severity::Unavailable,
            };
            findings.add("kafka", severity, &text);
        }
    }
    findings
}

/// Returns the aggregate types that wait, if they could be read.
async fn check_postgres(config: &Config, findings: &mut Findings) -> Option<Vec<String>> {
    let facts = match one_shot::database(config) {
        Ok(database) => one_shot::checked(config, &database).await.map(|facts| (database, facts)),
        Err(failed) => Err(failed),
    };
    let (database, facts): (Database, _) = match facts {
        Ok(found) => found,
        Err(failed) => {
            let what = if matches!(failed, Failed::Configuration(_)) { "schema" } else { "postgres" };
            findings.add_failed(what, failed);
            return None;
        }
    };
    let (major, minor) = (facts.server_version_num / 10_000, facts.server_version_num % 10_000);
    say("postgres", &format!("answers, version {major}.{minor}"));
    if facts.is_superuser {
        say("", &format!("warning: the role is a superuser, {MORE_THAN_NEEDED}"));
    }
    say("schema", &format!("{} is as it must be", config.outbox.table));
    match PostgresStatus::new(database, &config.outbox).waiting_types().await {
        Ok(types) => Some(types),
        Err(fault) => {
            findings.add_failed("postgres", one_shot::fault(fault));
            None
        }
    }
}

async fn check_topics(config: &Config, cluster: &KafkaCluster, types: &[String], findings: &mut Findings) {
    let mut topics: Vec<String> = types.iter().map(|name| config.outbox.topic.topic(name)).collect();
    topics.sort();
    topics.dedup();
    if topics.is_empty() {
        return say("topics", "no event waits, so none was looked at");
    }
    let producer = match cluster.open().await {
        Ok(producer) => producer,
        Err(failure) => return findings.add("topics", Severity::Mend, &failure.to_string()),
    };
    let mut good = 0;
    for topic in &topics {
        match producer.lookup(topic).await {
            Ok(_) => good += 1,
            // It exists, with a size limit of its own.
            Err(failure) if failure.kind == FailureKind::Session => good += 1,
            Err(failure) if matches!(failure.kind, FailureKind::Topic | FailureKind::Row) => {
                let text = format!("{failure}; {}", remedy(failure.reason));
                findings.add("topics", Severity::Mend, &text);
            }
            Err(failure) => {
                findings.add("topics", Severity::Unavailable, &failure.to_string());
                break;
            }
        }
    }
    producer.abandon();
    say("topics", &format!("{good} of the {} topics of waiting events are there", topics.len()));
}
