//! `outbox-relay migrate --adopt`: makes an existing table the outbox, or prints the SQL.

use super::{failed, unavailable};
use crate::cli::exit::Failed;
use crate::cli::terminal::output;
use crate::config::Config;
use anyhow::anyhow;
use clap::{Args, ValueEnum};
use postgres::connection::pool::Database;
use postgres::connection::pooler;
use postgres::schema::adopt;
use postgres::schema::adopt::{Adoption, ExistingRows, Step};
use postgres::schema::check::check_for;
use postgres::schema::errors::AdoptError;
use postgres::table::TableName;
use relay::health::stats::Stats;
use std::sync::Arc;
use tokio_postgres::Client;

#[derive(Debug, Args)]
pub(super) struct Adopt {
    /// With --adopt: run the SQL instead of printing it.
    #[arg(long, requires = "adopt")]
    apply: bool,
    /// With --adopt: what happens to the rows of a table that has no column for the time when they were sent.
    #[arg(long, value_name = "CHOICE", value_enum, requires = "adopt")]
    existing_rows: Option<Rows>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Rows {
    /// The relay publishes them.
    Publish,
    /// They count as sent. The reaper deletes them after the retention period.
    Sent,
}

impl Adopt {
    pub(super) async fn run(&self, config: &Config, adopted: &TableName) -> Result<(), Failed> {
        let table = &config.outbox.table;
        if !table.is_same_table(adopted) {
            let error = anyhow!(
                "[outbox] table is {table}, so the relay would not read {adopted}. Set [outbox] table = \"{adopted}\""
            );
            return Err(Failed::Configuration(error));
        }
        let database = Database::new(&config.postgres, 2, Arc::new(Stats::new())).map_err(unavailable)?;
        if self.apply && pooler::is_in_transaction_mode(&database).await.map_err(unavailable)? {
            let error = anyhow!(
                "[postgres] url connects through a pooler in transaction mode, which cannot build an index concurrently. \
                 Connect to the server directly, for example with OUTBOX_RELAY__POSTGRES__URL"
            );
            return Err(Failed::Configuration(error));
        }
        let mut connection = database.get().await.map_err(unavailable)?;
        let rows = self.existing_rows.map(|rows| match rows {
            Rows::Publish => ExistingRows::Publish,
            Rows::Sent => ExistingRows::Sent,
        });
        let adoption = adopt::plan(&mut connection, table, rows).await.map_err(|error| refused(&error))?;
        if !self.apply {
            return output::raw(adopt::print(table, &adoption.steps).as_bytes()).map(|_| ());
        }
        apply(&mut connection, config, &adoption).await
    }
}

async fn apply(client: &mut Client, config: &Config, adoption: &Adoption) -> Result<(), Failed> {
    let table = &config.outbox.table;
    if adoption.steps.is_empty() {
        return output::line(&format!("{table}: nothing is missing")).map(|_| ());
    }
    adopt::prepare(client, table, adoption).await.map_err(|error| refused(&error))?;
    for step in &adoption.steps {
        let Step { purpose, .. } = step;
        adopt::apply(client, table, adoption, step).await.map_err(|error| refused(&error))?;
        output::line(&format!("{table}: done: {purpose}"))?;
    }
    let checked = check_for(client, table, (&config.outbox).into(), &[]).await;
    checked.map_err(|error| refused(&error.into()))?;
    output::line(&format!("{table}: adopted. Next, apply the output of `outbox-relay migrate --print-roles`"))
        .map(|_| ())
}

fn refused(error: &AdoptError) -> Failed {
    match error {
        AdoptError::Migrate(migrate) => failed(migrate),
        AdoptError::ExistingRows { .. } => Failed::Usage(error.to_string()),
        AdoptError::Step { .. } | AdoptError::Locked { .. } => Failed::Failure(anyhow!("{error}")),
        AdoptError::Server(server) if server.code().is_none() => Failed::Unavailable(anyhow!("{error}")),
        AdoptError::Refused { .. } | AdoptError::Check(_) | AdoptError::Server(_) => {
            Failed::Configuration(anyhow!("{error}"))
        }
    }
}
