//! `outbox-relay confirm`: records that the outbox has moved to another PostgreSQL or Kafka cluster.

use super::failed::Failed;
use super::frame::{ConfigFile, Outbox, on_outbox};
use super::output;
use clap::Args;
use postgres::access::grants::CONFIRM_PRIVILEGES;
use postgres::connection::exec::ShortTransaction;
use postgres::schema::identity::{self, Identity};
use relay::failure::{FaultKind, PostgresFault};
use settings::text::in_line;

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/confirm.txt").trim_ascii_end())]
#[group(id = "confirmed", required = true, multiple = true)]
pub(crate) struct Confirm {
    /// Confirm the PostgreSQL cluster in [postgres] url.
    #[arg(long)]
    database: bool,
    /// Confirm the Kafka cluster in [kafka] bootstrap_servers.
    #[arg(long)]
    kafka: bool,
}

impl Confirm {
    pub(crate) fn run(self, file: &ConfigFile) -> Result<(), Failed> {
        let config = if self.kafka { file.load() } else { file.load_for_database() }?;
        let confirm = async |outbox: Outbox<'_>| self.confirm(&outbox).await;
        output::text(on_outbox(&config, CONFIRM_PRIVILEGES, confirm)?)
    }

    async fn confirm(&self, outbox: &Outbox<'_>) -> Result<String, Failed> {
        let (database, table) = (&outbox.database, &outbox.config.outbox.table);
        let found = self.found(outbox).await?;
        let failed = |fault: PostgresFault| match outbox.facts.difference {
            // An older schema has no columns for them.
            Some(_) if fault.kind != FaultKind::Unavailable => Failed::configuration(format!(
                "Nothing was confirmed: {fault}. Apply the pending migrations, then run this command again"
            )),
            _ => fault.into(),
        };
        let recorded = identity::recorded(&ShortTransaction::reading(database.clone()), table).await;
        let before = recorded.map_err(failed)?;
        if !identity::confirm(database, table, &found).await.map_err(failed)? {
            return Err(Failed::failure(format!(
                "Nothing has to be confirmed: no relay has recorded its settings in {} yet. The first relay records its \
                 clusters when it starts.",
                table.display_sibling(&table.name_of("{setting}"))
            )));
        }
        let system = found.system.map(|id| id.to_string());
        Ok([
            ("PostgreSQL", system, before.system.map(|id| id.to_string())),
            ("Kafka", found.kafka, before.kafka),
        ]
        .into_iter()
        .filter_map(|(what, id, before)| {
            Some(format!("{table}: {what} cluster {}\n", confirmed(&id?, before)))
        })
        .collect())
    }

    async fn found(&self, outbox: &Outbox<'_>) -> Result<Identity, Failed> {
        let mut found = Identity::default();
        if self.database {
            found.system = identity::system(&outbox.database).await?;
            if found.system.is_none() {
                return Err(Failed::failure(
                    "The server does not show its system identifier, so relays do not compare it. Nothing has to be confirmed.",
                ));
            }
        }
        if self.kafka {
            found.kafka = Some(outbox.config.cluster()?.id().await?);
        }
        Ok(found)
    }
}

fn confirmed(id: &str, before: Option<String>) -> String {
    let shown = |id: &str| in_line(id, 100);
    match before {
        Some(before) if before == id => format!("{}: was already recorded", shown(id)),
        Some(before) => format!("{}: confirmed, was {}", shown(id), shown(&before)),
        None => format!("{}: recorded", shown(id)),
    }
}
