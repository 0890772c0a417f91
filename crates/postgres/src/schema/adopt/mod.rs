//! Adopts an existing table: finds out what it lacks to be an outbox, as steps that can be printed or run.
//!
//! Each step can be repeated, and the migrations are the last one. After an interruption, the next run therefore finds the
//! rest. No step holds a lock that inserts wait for longer than it takes to change the system catalogs.

mod apply;
mod error;
mod existing;
mod judge;
mod print;
mod steps;

use tokio_postgres::Client;

pub use apply::{apply, prepare};
pub use error::AdoptError;
pub use print::print;
pub use steps::{ExistingRows, Step};

use crate::schema::migrate::Origin;
use crate::table::TableName;

/// What a table lacks.
pub struct Adoption {
    /// In order; empty if nothing is missing.
    pub steps: Vec<Step>,
    /// For the migrations.
    pub(crate) origin: Origin,
    /// Whether all migrations are applied.
    pub(crate) is_migrated: bool,
}

/// Reads the table, and finds out what it lacks. Changes nothing. `rows` is the choice for the rows that the table has.
pub async fn plan(
    client: &mut Client,
    table: &TableName,
    rows: Option<ExistingRows>,
) -> Result<Adoption, AdoptError> {
    let existing = existing::read(client, table).await?;
    let refusals = judge::refusals(table, &existing);
    if !refusals.is_empty() {
        return Err(AdoptError::Refused { table: table.to_string(), faults: refusals });
    }
    steps::plan(table, &existing, rows)
}
