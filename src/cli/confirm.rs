//! `outbox-relay confirm`: records that the outbox has moved to another PostgreSQL or Kafka cluster.

use super::exit::Failed;
use super::one_shot;
use super::terminal::output::{self, in_line};
use super::{ConfigFile, block_on};
use crate::config::Config;
use postgres::access::grants::CONFIRM_PRIVILEGES;
use postgres::connection::connect::Database;
use postgres::connection::transaction::ShortTransaction;
use postgres::schema::identity::{self, Identity};
use relay::failure::{FaultKind, PostgresFault};

use clap::Args;

/// Confirm that the outbox has moved to another cluster.
#[derive(Debug, Args)]
#[command(after_help = "\
The first relay of an outbox records the system identifier of PostgreSQL and the ID of the Kafka cluster. A relay that \
finds others exits with 78 and publishes nothing, because the database may be a copy, or the brokers may belong to \
another system. If the outbox has moved, stop all relays, read docs/moving.md, run this command with the configuration \
of the new place, and start the relays again.

A physical copy, such as a base backup or a snapshot, has the same system identifier as its original.

Examples:
  outbox-relay confirm --database --config config.toml
  outbox-relay confirm --kafka --config config.toml

Exit codes: 0 success, even if nothing has changed, 1 failure, 2 usage error, 69 PostgreSQL or Kafka unreachable, 78 invalid \
configuration or schema, or missing privileges.")]
#[group(id = "confirmed", required = true, multiple = true)]
pub(crate) struct Confirm {
    #[command(flatten)]
    config: ConfigFile,
    /// Confirm the PostgreSQL cluster in [postgres] url.
    #[arg(long, group = "confirmed")]
    database: bool,
    /// Confirm the Kafka cluster in [kafka] bootstrap_servers.
    #[arg(long, group = "confirmed")]
    kafka: bool,
}

impl Confirm {
    pub(crate) fn run(self) -> Result<(), Failed> {
        let config = if self.kafka { self.config.load() } else { self.config.load_for_database() }?;
        let lines = block_on(self.confirm(&config))??;
        output::print(lines.as_bytes()).map(|_| ())
    }

    async fn confirm(&self, config: &Config) -> Result<String, Failed> {
        let (database, table) = (one_shot::database(config)?, &config.outbox.table);
        let facts = one_shot::allowed(config, &database, CONFIRM_PRIVILEGES).await?;
        let found = self.found(config, &database).await?;
        let failed = |fault: PostgresFault| match facts.difference {
            // An older schema has no columns for them.
            Some(_) if fault.kind != FaultKind::Unavailable => Failed::Configuration(anyhow::anyhow!(
                "Nothing was confirmed: {fault}. Apply the pending migrations, then run this command again"
            )),
            _ => one_shot::fault(fault),
        };
        let recorded = identity::recorded(&ShortTransaction::reading(database.clone()), table).await;
        let before = recorded.map_err(failed)?;
        if !identity::confirm(&database, table, &found).await.map_err(failed)? {
            return Err(Failed::Failure(anyhow::anyhow!(
                "Nothing has to be confirmed: no relay has recorded its settings in {} yet. The first relay records \
                 its clusters when it starts.",
                table.display_sibling(&table.name_of("{setting}"))
            )));
        }
        let mut lines = String::new();
        if let Some(id) = found.system {
            lines += &line(
                &format!("{table}: PostgreSQL cluster"),
                &id.to_string(),
                before.system.map(|id| id.to_string()),
            );
        }
        if let Some(id) = &found.kafka {
            lines += &line(&format!("{table}: Kafka cluster"), id, before.kafka);
        }
        Ok(lines)
    }

    async fn found(&self, config: &Config, database: &Database) -> Result<Identity, Failed> {
        let mut found = Identity::default();
        if self.database {
            found.system = identity::system(database).await.map_err(one_shot::fault)?;
            if found.system.is_none() {
                return Err(Failed::Failure(anyhow::anyhow!(
                    "The server does not show its system identifier, so relays do not compare it. Nothing has to be confirmed."
                )));
            }
        }
        if self.kafka {
            let cluster = config.cluster().map_err(|failure| one_shot::kafka(&failure))?;
            found.kafka = Some(cluster.id().await.map_err(|failure| one_shot::kafka(&failure))?);
        }
        Ok(found)
    }
}

fn line(what: &str, id: &str, before: Option<String>) -> String {
    let shown = |id: &str| in_line(id, 100);
    match before {
        Some(before) if before == id => format!("{what} {}: was already recorded\n", shown(id)),
        Some(before) => format!("{what} {}: confirmed, was {}\n", shown(id), shown(&before)),
        None => format!("{what} {}: recorded\n", shown(id)),
    }
}
