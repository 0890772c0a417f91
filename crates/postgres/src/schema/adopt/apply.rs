//! Runs the steps.

use tokio::time::sleep;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::Adoption;
use super::error::AdoptError;
use super::steps::{How, Step};
use crate::schema::migrate::{self, DDL_ATTEMPTS, DDL_PAUSE, MigrateError};
use crate::table::TableName;

/// For the session, because indexes cannot be built in a transaction. The command refuses a pooler in transaction mode. While a statement waits for a lock on the table, inserts
/// wait too.
const SETTINGS: &str = "SET search_path = pg_catalog, pg_temp; SET statement_timeout = 0; SET lock_timeout = '1s'; \
                        SET default_transaction_read_only = off";

/// Tries the migrations and rolls them back, so that a missing privilege or a name that is in use stops the adoption before it
/// has changed the table. Sets the session up for [`apply`].
pub async fn prepare(client: &mut Client, table: &TableName, adoption: &Adoption) -> Result<(), AdoptError> {
    client.batch_execute(SETTINGS).await?;
    if !adoption.is_migrated {
        migrate::dry_run_adopted(client, table, adoption.origin).await?;
    }
    Ok(())
}

/// Runs one step. A step that cannot get its lock is tried again.
pub async fn apply(
    client: &mut Client,
    table: &TableName,
    adoption: &Adoption,
    step: &Step,
) -> Result<(), AdoptError> {
    if step.how == How::Migrations {
        return Ok(migrate::apply_adopted(client, table, adoption.origin).await.map(drop)?);
    }
    let mut attempt = 1;
    loop {
        let Err(error) = run(client, step).await else { return Ok(()) };
        let is_locked = error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE);
        match (is_locked, attempt < DDL_ATTEMPTS) {
            (true, true) => attempt += 1,
            (true, false) => return Err(MigrateError::InUse { table: table.to_string() }.into()),
            (false, _) => return Err(failed(client, table, step, error).await),
        }
        sleep(DDL_PAUSE).await;
    }
}

async fn run(client: &mut Client, step: &Step) -> Result<(), tokio_postgres::Error> {
    match step.how {
        How::Transaction => {
            let transaction = client.transaction().await?;
            transaction.batch_execute(&step.sql).await?;
            transaction.commit().await
        }
        // Each in its own message, because several statements in one are a transaction.
        How::Index => {
            client.batch_execute("SET lock_timeout = 0").await?;
            let done = client.batch_execute(&step.sql).await;
            client.batch_execute("SET lock_timeout = '1s'").await?;
            done
        }
        How::Alone | How::Migrations => client.batch_execute(&step.sql).await,
    }
}

/// The error, and what to do. A constraint that the rows violate is dropped, so that it does not reject inserts.
async fn failed(client: &Client, table: &TableName, step: &Step, error: tokio_postgres::Error) -> AdoptError {
    let remedy = match error.code() {
        Some(&SqlState::CHECK_VIOLATION) => {
            let drop = format!(
                "ALTER TABLE {} DROP CONSTRAINT IF EXISTS {}",
                table.quoted(),
                super::steps::NOT_NULL
            );
            match client.batch_execute(&drop).await {
                Ok(()) => {
                    "Rows with NULL were inserted meanwhile. Set the column in them, and run the command again"
                }
                Err(_) => {
                    "Drop the constraint outbox_relay_not_null, set the column in all rows, and run the command again"
                }
            }
        }
        Some(&SqlState::UNIQUE_VIOLATION) => "Give every row its own ID, and run the command again",
        _ => "Fix the cause and run the command again: it continues where it stopped",
    };
    let (table, step) = (table.to_string(), step.purpose.clone());
    AdoptError::Step { table, step, source: error.into(), remedy }
}
