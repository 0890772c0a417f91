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

/// Check the configuration, and with --connect what it leads to.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --connect nothing is connected to: every setting is checked, every file of a secret or certificate opened, and \
librdkafka asked whether it takes the properties. Everything that is wrong is shown at once, with its line.

With --connect also: Postgres answers and has the right schema and grants, Kafka answers, and whatever `doctor` looks at: \
TLS, the claim's plan, and of each topic that events go to whether the relay's user sees it, whether its replicas are in \
sync, and whether it takes what waits. Nothing is changed, so whether the user may write to a topic that it sees is not \
tried. Errors have to be mended first; of an event that can never be sent, only a warning is given, since the others flow.

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
    check_postgres(config, &mut findings).await;
    match cluster.probe().await {
        Ok(()) => say("kafka", &format!("answers at {}", config.kafka.bootstrap_servers)),
        Err(failure) => {
            let text = format!("{failure}; {}", remedy(failure.reason));
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
    say("schema", &format!("{} is as it must be", config.outbox.table));
}

/// What the doctor found, but for its notes.
fn tell(examined: &Examined, findings: &mut Findings) {
    match examined.topics {
        0 => say("topics", "none was looked at, since no event waits or was sent lately"),
        topics => say("topics", &format!("{topics} that events go to were looked at")),
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
                findings.add("error", Severity::Mend, &format!("{place}: {problem}; {remedy}"));
            }
            finding::Severity::Error | finding::Severity::Warning => {
                warnings += 1;
                say("warning", &format!("{place}: {problem}"));
            }
            finding::Severity::Note => {}
        }
    }
    match (errors, warnings) {
        (0, 0) => say("doctor", "finds nothing"),
        _ => {
            say(
                "doctor",
                &format!("errors {errors}, warnings {warnings}: outbox-relay doctor explains them"),
            );
        }
    }
}
