//! `outbox-relay check-config`: validates the configuration before a deployment.

use super::doctor;
use super::failed::{Failed, is_refused};
use super::frame::{ConfigFile, block_on, database};
use super::output;
use crate::config::Config;
use crate::supervisor::{self, StartError};
use clap::Args;
use kafka::cluster::KafkaCluster;
use postgres::connection::tls;
use postgres::diagnose::doctor::Examined;
use postgres::diagnose::doctor::events::{
    EVENT_HEADERS, EVENT_TOO_LARGE, EVENT_TOPIC_NAME, EVENT_TOPIC_NOT_ALLOWED,
};
use relay::publisher::Publisher;
use relay::reason::{fix, remedy};
use settings::doctor::{Finding, Severity};
use settings::text::{commands, in_line};

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/check-config.txt").trim_ascii_end())]
pub(crate) struct CheckConfig {
    /// Also check PostgreSQL, Kafka and the topics.
    #[arg(long)]
    connect: bool,
}

impl CheckConfig {
    pub(crate) fn run(self, file: &ConfigFile) -> Result<(), Failed> {
        let config = file.load()?;
        let source = file.path().map_or("the environment".to_owned(), |path| path.display().to_string());
        check(&config, &source, self.connect, &[])
    }
}

/// Checks the configuration. With `connects`, checks the servers too, and these topics in addition to those of events.
pub(super) fn check(config: &Config, source: &str, connects: bool, topics: &[String]) -> Result<(), Failed> {
    let cluster = config.cluster()?;
    cluster.check_settings()?;
    check_tls_files(config)?;
    print("configuration", &format!("{source} is valid"));
    if !connects {
        return Ok(());
    }
    match block_on(connect(config, &cluster, topics))? {
        None => Ok(()),
        Some(Cause::Unavailable) => Err(Failed::unavailable("Cannot connect to PostgreSQL or Kafka.")),
        Some(Cause::Invalid) => Err(Failed::configuration(
            "The checks found errors, so the relay or some of its topics would not work. Fix each error and run the \
             command again.",
        )),
    }
}

/// Parses the certificates and the key for PostgreSQL, which are read again for each connection.
fn check_tls_files(config: &Config) -> Result<(), Failed> {
    let invalid = |cause: String| {
        Failed::configuration(format!("The [postgres] connection settings are invalid: {cause}"))
    };
    let connection = config.postgres.connection().map_err(|error| invalid(error.to_string()))?;
    tls::connector(&connection.tls).map(|_| ()).map_err(|error| invalid(error.to_string()))
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Unavailable,
    Invalid,
}

fn report(what: &str, cause: Cause, text: &str) -> Option<Cause> {
    print(what, text);
    Some(cause)
}

fn postgres_problem(failed: &Failed) -> Option<Cause> {
    let is_unavailable = matches!(failed, Failed::Unavailable(_));
    let cause = if is_unavailable { Cause::Unavailable } else { Cause::Invalid };
    report("postgres", cause, &failed.to_string())
}

/// Reports a failed write on stderr and continues, because the exit code must reflect the check.
fn print(what: &str, text: &str) {
    if let Err(failed) = output::line(&format!("{what:<14} {}", commands(text))) {
        _ = failed.report();
    }
}

/// Prints each problem at once and returns the worst cause.
async fn connect(config: &Config, cluster: &KafkaCluster, topics: &[String]) -> Option<Cause> {
    let mut worst = check_postgres(config).await;
    match cluster.probe().await {
        Ok(()) => print("kafka", &format!("connected to {}", config.kafka.bootstrap_servers)),
        Err(failure) => {
            let text = format!("{failure}. {}", fix(remedy(failure.reason)));
            let cause = if is_refused(&failure) { Cause::Invalid } else { Cause::Unavailable };
            worst = worst.max(report("kafka", cause, &text));
        }
    }
    // After a problem, the doctor would only find it again.
    if worst.is_some() {
        return worst;
    }
    match doctor::examine(config, cluster, "check-config", topics).await {
        Ok(examined) => print_findings(&examined),
        Err(failed) => postgres_problem(&failed),
    }
}

async fn check_postgres(config: &Config) -> Option<Cause> {
    let database = match database(config, 1) {
        Ok(database) => database,
        Err(failed) => return postgres_problem(&failed),
    };
    let facts = match supervisor::check_schema(config, &database, None).await {
        Ok(facts) => facts,
        Err(StartError::Unavailable(text)) => return report("postgres", Cause::Unavailable, &text),
        Err(StartError::Unfit(text)) => return report("schema", Cause::Invalid, &text),
        Err(StartError::Older(text)) => {
            let text = text + "\n  Until then, the relay waits. It starts by itself after the migration";
            return report("schema", Cause::Invalid, &text);
        }
    };
    let (major, minor) = (facts.server_version_num / 10_000, facts.server_version_num % 10_000);
    print("postgres", &format!("connected, version {major}.{minor}"));
    print("schema", &format!("{} is valid", config.outbox.table));
    None
}

/// Prints the findings of the doctor except notes. An error makes the configuration invalid.
fn print_findings(examined: &Examined) -> Option<Cause> {
    match examined.topics.len() {
        0 => print("topics", "none checked: no event is waiting, and none was sent recently"),
        topics => print("topics", &format!("{topics} checked")),
    }
    let (mut errors, mut warnings) = (0, 0);
    for Finding { code, place, problem, remedy } in &examined.findings {
        let (place, problem) = (in_line(place, usize::MAX), in_line(problem, usize::MAX));
        // Such an event does not stop the relay.
        let one_event = [&EVENT_HEADERS, &EVENT_TOO_LARGE, &EVENT_TOPIC_NAME, &EVENT_TOPIC_NOT_ALLOWED];
        match code.severity {
            Severity::Error if !one_event.contains(code) => {
                errors += 1;
                print("error", &format!("{place}: {problem}. {}", fix(&in_line(remedy, usize::MAX))));
            }
            Severity::Error | Severity::Warning => {
                warnings += 1;
                print("warning", &format!("{place}: {problem}"));
            }
            Severity::Note => {}
        }
    }
    match (errors, warnings) {
        (0, 0) => print("doctor", "no problems found"),
        _ => {
            let details = "For details, run: outbox-relay doctor";
            print("doctor", &format!("errors: {errors}, warnings: {warnings}. {details}"));
        }
    }
    (errors > 0).then_some(Cause::Invalid)
}
