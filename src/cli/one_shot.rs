//! What commands share that ask Postgres once and end: an unreachable server ends them with 69, a wrong schema with 78.

use super::exit::Failed;
use crate::config::{Config, ConnectionError};
use crate::postgres::access::grants::Right;
use crate::postgres::connection::connect::Database;
use crate::postgres::schema::check::Facts;
use crate::relay::failure::{Fault, FaultKind};
use crate::relay::health::stats::Stats;
use crate::supervisor::{self, StartError};
use std::sync::Arc;

/// One connection at a time.
pub(crate) fn database(config: &Config) -> Result<Database, Failed> {
    Database::new(&config.postgres, 1, Arc::new(Stats::new())).map_err(fault)
}

/// For a command that looks at relays by their name, and so must not have it: the relays' name, and two connections under
/// that name and the command's. Nothing is prepared on them, so that the wrong pooler is no reason to see nothing.
pub(crate) fn onlooker(config: &Config, command: &str) -> Result<(String, Database), Failed> {
    let unreadable = |error: ConnectionError| Failed::Unavailable(anyhow::Error::new(error));
    let connection = config.postgres.connection().map_err(unreadable)?;
    let name = connection.config.get_application_name().unwrap_or_default().to_owned();
    let mut settings = config.postgres.clone();
    settings.application_name = Some(format!("{name} {command}"));
    settings.prepared_statements = false;
    Ok((name, Database::new(&settings, 2, Arc::new(Stats::new())).map_err(fault)?))
}

/// The checks that a relay makes at start.
pub(crate) async fn checked(config: &Config, database: &Database) -> Result<Facts, Failed> {
    supervisor::check_schema(config, database).await.map_err(failed_check)
}

/// The same checks for a command that needs these rights instead of the relay's. Each one that is missing is named by its
/// GRANT.
pub(super) async fn allowed(config: &Config, database: &Database, rights: &[Right]) -> Result<Facts, Failed> {
    supervisor::check_schema_for(config, database, rights).await.map_err(failed_check)
}

fn failed_check(error: StartError) -> Failed {
    match error {
        StartError::Unavailable(text) => Failed::Unavailable(anyhow::anyhow!(text)),
        StartError::Unfit(text) => Failed::Configuration(anyhow::anyhow!(text)),
    }
}

/// A fault of the database as the end of a command.
pub(crate) fn fault(fault: Fault) -> Failed {
    match fault.kind {
        FaultKind::Unavailable => Failed::Unavailable(fault.into()),
        FaultKind::Contended | FaultKind::Refused | FaultKind::Data | FaultKind::TimedOut => {
            Failed::Failure(fault.into())
        }
    }
}
