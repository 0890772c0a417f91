//! What commands share that ask Postgres once and end: an unreachable server ends them with 69, a wrong schema with 78.

use super::exit::Failed;
use crate::config::Config;
use crate::postgres::check::Facts;
use crate::postgres::connect::Database;
use crate::postgres::grants::Right;
use crate::relay::failure::{Fault, FaultKind};
use crate::relay::stats::Stats;
use crate::supervisor::{self, StartError};
use std::sync::Arc;

/// One connection at a time.
pub fn database(config: &Config) -> Result<Database, Failed> {
    Database::new(&config.postgres, 1, Arc::new(Stats::new())).map_err(fault)
}

/// The checks that a relay makes at start.
pub async fn checked(config: &Config, database: &Database) -> Result<Facts, Failed> {
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
pub fn fault(fault: Fault) -> Failed {
    match fault.kind {
        FaultKind::Unavailable => Failed::Unavailable(fault.into()),
        FaultKind::Contended | FaultKind::Refused => Failed::Failure(fault.into()),
    }
}
