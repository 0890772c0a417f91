//! The numbered migrations of the schema: applying them.
//!
//! Each migration runs in its own transaction, under a lock on the table that records it, so that two deployments can run
//! `migrate` at the same time. Only roles that may write to that table can take such a lock, unlike an advisory lock. A table next
//! to the outbox records each migration with the checksum of its text. The daemon reads that table, and never migrates by itself.

pub use crate::schema::series::{
    MIGRATIONS, Migration, MigrationState, Series, State, Texts, Version, debezium, print, print_pending,
    read_status, status,
};

use crate::connection::exec::{NEWER_SETTINGS, open};
use crate::schema::errors::{DDL_ATTEMPTS, MigrateError, failed};
use crate::schema::series::{require_own, to_upgrade_to};
use crate::sql::{bare, sql};
use crate::table::{TableName, quote_identifier};
use std::time::Duration;
use tokio::time::sleep;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Transaction};

/// While a statement waits for a lock on the table, the application's inserts wait too. So it waits briefly, and is retried after
/// a pause. A claim of a relay keeps its lock until Kafka responds. The time is longer than the default `deadlock_timeout`, 1 s,
/// after which the server cancels an autovacuum that has the lock.
pub(crate) const DDL_LOCK_TIMEOUT: &str = "1500ms";
const DDL_PAUSE: Duration = Duration::from_secs(2);

/// Without a statement timeout, because creating an index on a large table takes long.
const SETTINGS: &str = "
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = 0";

/// Applies every pending migration of the outbox, each in its own transaction, and returns them.
///
/// Several callers can run it at the same time. If it fails or is dropped, the current migration is rolled back, and the
/// earlier ones stay applied.
pub async fn apply(client: &mut Client, table: &TableName) -> Result<Vec<Migration>, MigrateError> {
    let mut applied = Vec::new();
    apply_series(client, table, Series::Outbox, &mut applied).await?;
    Ok(applied)
}

/// [`apply`], for any series. Adds each migration to `applied` as it commits, because those before a failed one stay applied.
pub async fn apply_series(
    client: &mut Client,
    table: &TableName,
    series: Series,
    applied: &mut Vec<Migration>,
) -> Result<(), MigrateError> {
    require_table(client, table, series).await?;
    apply_as(client, table, Texts::of(series, table), applied).await
}

/// [`apply_series`], with these texts.
pub(crate) async fn apply_as(
    client: &mut Client,
    table: &TableName,
    texts: Texts,
    applied: &mut Vec<Migration>,
) -> Result<(), MigrateError> {
    let series = texts.series;
    // Read without the lock first, so that a read-only role can run the command if there is nothing to do.
    let states = status(client, table, series).await?;
    for migration in pending(series, &states, table)? {
        retried(async || {
            let transaction = begin(client, table, series).await?;
            // Another session may have applied it while this one waited for the lock.
            let states = read_status(&transaction, table, series).await?;
            if pending(series, &states, table)?.contains(&migration) {
                run(&transaction, table, texts, &migration).await?;
                transaction.commit().await.map_err(failed(table))?;
                applied.push(migration);
            }
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Applies every pending migration in one transaction, rolls it back, and returns them.
///
/// The statements run, take the same locks and are retried as in [`apply`], so that missing privileges and name conflicts cause
/// errors.
pub async fn dry_run(
    client: &mut Client,
    table: &TableName,
    series: Series,
) -> Result<Vec<Migration>, MigrateError> {
    require_table(client, table, series).await?;
    let states = status(client, table, series).await?;
    if pending(series, &states, table)?.is_empty() {
        return Ok(Vec::new());
    }
    try_pending(client, table, Texts::of(series, table), Around::default()).await
}

/// [`dry_run`] of the outbox, followed by `more` in the same transaction. `grant` is the statement for a privilege that `more`
/// lacks.
pub async fn dry_run_with(
    client: &mut Client,
    table: &TableName,
    more: &str,
    grant: &str,
) -> Result<Vec<Migration>, MigrateError> {
    let around = Around { after: more, grant, ..Around::default() };
    try_pending(client, table, Texts::of(Series::Outbox, table), around).await
}

/// The statements of a dry run before and after the migrations. `grant` is the statement for a privilege that `after` lacks.
#[derive(Clone, Copy, Default)]
pub(super) struct Around<'a> {
    pub(super) before: &'a str,
    pub(super) after: &'a str,
    pub(super) grant: &'a str,
}

/// [`dry_run`], with these texts.
pub(super) async fn try_pending(
    client: &mut Client,
    table: &TableName,
    texts: Texts,
    around: Around<'_>,
) -> Result<Vec<Migration>, MigrateError> {
    retried(async || {
        let transaction = begin(client, table, texts.series).await?;
        transaction.batch_execute(around.before).await.map_err(failed(table))?;
        let states = read_status(&transaction, table, texts.series).await?;
        let pending = pending(texts.series, &states, table)?;
        for migration in &pending {
            run(&transaction, table, texts, migration).await?;
        }
        let done = transaction.batch_execute(around.after).await;
        done.map_err(|error| MigrateError::new(table, error, around.grant))?;
        transaction.rollback().await.map_err(failed(table))?;
        Ok(pending)
    })
    .await
}

/// Repeats a step that cannot lock a table.
pub(super) async fn retried<T>(
    mut step: impl AsyncFnMut() -> Result<T, MigrateError>,
) -> Result<T, MigrateError> {
    for _ in 1..DDL_ATTEMPTS {
        match step().await {
            Err(MigrateError::InUse { .. }) => sleep(DDL_PAUSE).await,
            done => return done,
        }
    }
    step().await
}

/// Opens the transaction of a migration, creates the table that records it if it is missing, and waits for other migrations.
async fn begin<'a>(
    client: &'a mut Client,
    table: &TableName,
    series: Series,
) -> Result<Transaction<'a>, MigrateError> {
    let fault = failed(table);
    let transaction = open(client, false, SETTINGS).await.map_err(|error| match error.code() {
        // A standby rejects READ WRITE with this code.
        Some(&SqlState::FEATURE_NOT_SUPPORTED) => {
            MigrateError::ReadOnly { table: table.to_string(), source: error.into() }
        }
        _ => fault(error),
    })?;
    transaction.batch_execute(NEWER_SETTINGS).await.map_err(fault)?;
    require_own(&transaction, table, series).await?;
    let grant = missing_grant(&transaction, table).await?;
    let bookkeeping = table.render(series.bookkeeping());
    let lock = format!("{bookkeeping}LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE", series.record(table));
    transaction.batch_execute(&lock).await.map_err(|error| match error.code() {
        // Another migration has created the schema or the table meanwhile.
        Some(&SqlState::UNIQUE_VIOLATION | &SqlState::DUPLICATE_TABLE | &SqlState::DUPLICATE_SCHEMA) => {
            MigrateError::InUse { table: table.to_string() }
        }
        _ => MigrateError::new(table, error, &grant),
    })?;
    // Another session may have created the table meanwhile.
    require_own(&transaction, table, series).await?;
    let timeout = format!("SET LOCAL lock_timeout = '{DDL_LOCK_TIMEOUT}'");
    transaction.batch_execute(&timeout).await.map_err(fault)?;
    Ok(transaction)
}

async fn run(
    transaction: &Transaction<'_>,
    table: &TableName,
    texts: Texts,
    migration: &Migration,
) -> Result<(), MigrateError> {
    let grant = missing_grant(transaction, table).await?;
    // Another name for an existing outbox would be a new, empty one, and modules have fixed names.
    let remedy = match (texts.series, migration.number) {
        (Series::Outbox, 1) => {
            "Choose another name in [outbox] table, rename the existing table, or adopt it with `outbox-relay migrate --adopt`"
        }
        _ => "Rename or drop the existing table or function",
    };
    let fault = |error: tokio_postgres::Error| match error.code() {
        Some(&SqlState::LOCK_NOT_AVAILABLE) => MigrateError::InUse { table: table.to_string() },
        Some(&SqlState::DUPLICATE_TABLE | &SqlState::DUPLICATE_FUNCTION) => {
            MigrateError::Exists { table: table.to_string(), source: error.into(), remedy }
        }
        _ => MigrateError::new(table, error, &grant),
    };
    transaction.batch_execute(&texts.sql(migration, table)).await.map_err(fault)?;
    transaction.batch_execute(&texts.series.record_sql(table, migration)).await.map_err(fault)
}

/// The migrations to apply, or the reason why none can be applied.
fn pending(
    series: Series,
    states: &[MigrationState],
    table: &TableName,
) -> Result<Vec<Migration>, MigrateError> {
    let is_pending_any = states.iter().any(|known| known.state == State::Pending);
    for known in states {
        let (table, number, name) = (table.to_string(), known.number, known.name.clone());
        match &known.state {
            State::ChecksumDiffers { recorded } => {
                let recorded = recorded.clone();
                return Err(MigrateError::ChecksumDiffers { table, number, name, recorded });
            }
            // Migrations are applied in order, so none can be applied before it.
            State::Unknown { min_relay } if !known.state.is_newer_and_compatible() || is_pending_any => {
                let upgrade = to_upgrade_to(*min_relay);
                return Err(MigrateError::Newer { table, number, name, upgrade });
            }
            State::Applied { .. } | State::Pending | State::Unknown { .. } => {}
        }
    }
    Ok(series.migrations().iter().filter(|migration| migration.is_pending(states)).copied().collect())
}

/// The migrations do not create a table with renamed columns.
async fn require_table(client: &mut Client, table: &TableName, series: Series) -> Result<(), MigrateError> {
    if table.columns().are_standard() || series != Series::Outbox {
        return Ok(());
    }
    let states = status(client, table, series).await?;
    match series.migrations().first().is_some_and(|first| first.is_pending(&states)) {
        true => Err(MigrateError::NotAdopted { table: table.to_string() }),
        false => Ok(()),
    }
}

/// The GRANT statement for a privilege that is probably missing. Its names are read before the step that may fail, because a failed
/// transaction rejects queries.
async fn missing_grant(transaction: &Transaction<'_>, table: &TableName) -> Result<String, MigrateError> {
    let schema = table.schema();
    let row = transaction.query_typed_one(bare(sql!("migrate/names")), &params![schema => TEXT]).await;
    let row = row.map_err(failed(table))?;
    let (role, database): (&str, &str) = (row.get(0), row.get(1));
    let (schema_exists, may_create): (bool, bool) = (row.get(2), row.get(3));
    let (role, schema) = (quote_identifier(role), quote_identifier(schema));
    Ok(if !schema_exists {
        format!("GRANT CREATE ON DATABASE {} TO {role};", quote_identifier(database))
    } else if !may_create {
        format!("GRANT USAGE, CREATE ON SCHEMA {schema} TO {role};")
    } else {
        format!("GRANT <the role that owns {}> TO {role}; (or migrate as that role)", table.quoted())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::errors::LOCK_TIMEOUT;

    #[test]
    fn the_error_names_the_lock_timeout_of_the_settings() {
        assert!(SETTINGS.contains(&format!("lock_timeout = '{}s'", LOCK_TIMEOUT.as_secs())));
    }

    #[test]
    fn ddl_waits_until_the_server_cancels_an_autovacuum() {
        let milliseconds: u32 = DDL_LOCK_TIMEOUT.strip_suffix("ms").unwrap().parse().unwrap();
        assert!(milliseconds > 1_000, "the default deadlock_timeout");
        let script = sql!("adopt/header");
        assert!(script.contains(&format!("SET lock_timeout = '{DDL_LOCK_TIMEOUT}'")), "{script}");
    }
}
