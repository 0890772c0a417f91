//! Shared by commands that query Postgres and end: exit code 69 for an unreachable server, 78 for an invalid schema.

use crate::cli::exit::Failed;
use crate::cli::run::clusters::explained;
use crate::config::{Config, OnSent};
use crate::supervisor::{self, StartError};
use postgres::access::grants::Privilege;
use postgres::connection::connect::{Database, monitoring_settings};
use postgres::connection::transaction::ShortTransaction;
use postgres::schema::check::Facts;
use postgres::schema::identity::{self, Identity};
use relay::failure::{FailureKind, FaultKind, KafkaFailure, PostgresFault};
use relay::health::stats::Stats;
use relay::reason::{CONFIGURATION, fix, remedy};
use std::sync::Arc;

/// A pool with one connection.
pub(crate) fn database(config: &Config) -> Result<Database, Failed> {
    Database::new(&config.postgres, 1, Arc::new(Stats::new())).map_err(fault)
}

/// For a command that only examines the database: a pool of two connections under a name other than the relay's.
pub(crate) fn monitoring_database(config: &Config, command: &str) -> Result<Database, Failed> {
    let settings = monitoring_settings(&config.postgres, command);
    let (_, settings) = settings.map_err(|error| Failed::Unavailable(anyhow::Error::new(error)))?;
    Database::new(&settings, 2, Arc::new(Stats::new())).map_err(fault)
}

/// Runs the checks of a relay at start for a command that needs these privileges instead of the relay's. The error has a
/// GRANT statement for each missing privilege. On a schema of another version, prints a warning.
pub(crate) async fn allowed(
    config: &Config,
    database: &Database,
    privileges: &[Privilege],
) -> Result<Facts, Failed> {
    let facts = supervisor::check_schema_for(config, database, privileges).await.map_err(failed_check)?;
    warn_of(facts.difference.as_deref());
    Ok(facts)
}

/// Prints how the schema differs from that of this version.
pub(crate) fn warn_of(difference: Option<&str>) {
    if let Some(difference) = difference {
        eprintln!("warning: {difference}");
    }
}

/// What differs if the database, or the Kafka cluster with this ID, is not the one that the outbox belongs to. Nothing is known
/// without the privilege to read what is recorded.
pub(crate) async fn other_clusters(
    config: &Config,
    database: &Database,
    kafka: Option<String>,
) -> Result<Option<String>, Failed> {
    let recorded =
        match identity::recorded(&ShortTransaction::reading(database.clone()), &config.outbox.table).await {
            Err(refused) if refused.kind == FaultKind::Refused => return Ok(None),
            recorded => recorded.map_err(fault)?,
        };
    let found = Identity { system: identity::system(database).await.map_err(fault)?, kafka };
    let mismatches = recorded.mismatches(&found);
    Ok((!mismatches.is_empty()).then(|| explained(&mismatches)))
}

/// Fails if the outbox belongs to other clusters, because no relay would publish it here.
pub(crate) async fn right_clusters(
    config: &Config,
    database: &Database,
    kafka: Option<String>,
) -> Result<(), Failed> {
    match other_clusters(config, database, kafka).await? {
        Some(problem) => Err(Failed::Configuration(anyhow::anyhow!(problem))),
        None => Ok(()),
    }
}

/// For a command that needs sent events.
pub(crate) fn keeps_history(config: &Config) -> Result<(), Failed> {
    match config.outbox.on_sent {
        OnSent::Mark => Ok(()),
        OnSent::Delete => Err(Failed::Configuration(anyhow::anyhow!(
            "There are no sent events: [outbox] on_sent = \"delete\" deletes each event as soon as it is sent. Set \
             on_sent = \"mark\" to keep them for [reaper] retention."
        ))),
    }
}

pub(crate) fn failed_check(error: StartError) -> Failed {
    match error {
        StartError::Unavailable(text) => Failed::Unavailable(anyhow::anyhow!(text)),
        StartError::Older(text) | StartError::Unfit(text) => Failed::Configuration(anyhow::anyhow!(text)),
    }
}

/// Maps a fault of the database to the exit of a command.
pub(crate) fn fault(fault: PostgresFault) -> Failed {
    match fault.kind {
        FaultKind::Unavailable => Failed::Unavailable(fault.into()),
        _ => Failed::Failure(fault.into()),
    }
}

/// Maps a failure of Kafka to the exit of a command.
pub(crate) fn kafka(failure: &KafkaFailure) -> Failed {
    if failure.reason == CONFIGURATION.word {
        return Failed::Configuration(anyhow::anyhow!("[kafka.properties] is invalid: {}", failure.error));
    }
    let error = anyhow::anyhow!("Kafka failed: {failure}. {}", fix(remedy(failure.reason)));
    match failure.kind {
        FailureKind::Cluster | FailureKind::Unknown => Failed::Unavailable(error),
        FailureKind::Row | FailureKind::Topic | FailureKind::Session => Failed::Failure(error),
    }
}
