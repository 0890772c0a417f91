//! `outbox-relay migrate`: creates or upgrades the tables, or prints the SQL.

mod adopt;

use super::exit::Failed;
use super::terminal::output;
use super::{ConfigFile, block_on};
use crate::config::Config;
use adopt::Adopt;
use clap::{ArgGroup, Args, ValueEnum};
use postgres::access::roles::{self, RelayRole, Sessions};
use postgres::connection::connect::Database;
use postgres::cycle::statements::{self, Statements};
use postgres::payload::PayloadType;
use postgres::schema::adapter::debezium;
use postgres::schema::migrate::{self, MigrateError, Module, Series, State};
use postgres::table::TableName;
use relay::health::stats::Stats;
use std::sync::Arc;

/// Create or upgrade the outbox tables.
#[derive(Debug, Args)]
#[command(after_help = "\
Each migration runs in its own transaction, under a lock on the table that records the migrations. It waits at most 1 s for a lock on a table, so \
that inserts do not queue behind it for long, and tries up to 10 times. Its checksum is recorded. Running the \
command again changes \
nothing. The relay never migrates by itself.

Examples:
  outbox-relay migrate --config config.toml --status
  outbox-relay migrate --config config.toml
  outbox-relay migrate --config config.toml --print > outbox.sql    (for Flyway, Atlas or psql)
  outbox-relay migrate --config config.toml --with inbox,idempotency,once
  outbox-relay migrate --config config.toml --print-roles | psql --single-transaction app
  outbox-relay migrate --config config.toml --print-queries > queries.sql    (for EXPLAIN in psql)
  outbox-relay migrate --config config.toml --adopt public.events
  outbox-relay migrate --config config.toml --adopt public.events --apply --existing-rows sent

Exit codes: 0 success, 1 another migration is in progress or a table is in use, 2 usage error, 69 PostgreSQL unreachable, 78 invalid \
configuration or schema, or missing privileges.")]
#[command(group(ArgGroup::new("names_roles").args(["print_roles", "print_adapter"])))]
pub(crate) struct Migrate {
    #[command(flatten)]
    config: ConfigFile,
    /// Also create these optional modules in the outbox's schema: inbox, idempotency, once. Existing modules are
    /// always upgraded.
    #[arg(long, value_delimiter = ',', value_name = "MODULES")]
    with: Vec<Module>,
    /// Create only these modules, for a database without an outbox.
    #[arg(long, value_delimiter = ',', value_name = "MODULES", conflicts_with = "with")]
    only: Vec<Module>,
    #[command(flatten)]
    instead: Instead,
    #[command(flatten)]
    adopted: Adopt,
    /// With --print-adapter: the table to replace.
    #[arg(long, value_name = "TABLE", default_value = "public.outboxevent", requires = "print_adapter")]
    from: TableName,
    /// With --print-roles and --print-adapter: name of the relay's role. The other roles are named after it.
    #[arg(long, value_name = "NAME", default_value = "outbox_relay", requires = "names_roles")]
    role: RelayRole,
    /// With --print-roles: also show operators and monitoring all sessions of the server, with their statements
    /// (pg_read_all_stats). Without it, `status` shows less.
    #[arg(long, requires = "print_roles")]
    with_stats: bool,
    /// With --print-queries: type of the payload column (json, jsonb, text or bytea).
    #[arg(long, value_name = "TYPE", default_value = "json", requires = "print_queries")]
    payload: PayloadType,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct Instead {
    /// Print the SQL of all migrations without connecting.
    #[arg(long)]
    print: bool,
    /// Print the SQL that creates the relay, operator, monitoring and writer roles with the privileges they need,
    /// without connecting.
    #[arg(long)]
    print_roles: bool,
    /// Print the statements of a running relay as PREPARE commands for EXPLAIN, without connecting.
    #[arg(long)]
    print_queries: bool,
    /// Print the SQL that replaces a table of another tool with a view that inserts into the outbox, without connecting.
    #[arg(long, value_name = "TOOL", value_enum)]
    print_adapter: Option<Adapter>,
    /// Print the SQL that turns an existing table into the outbox: missing columns, indexes and the other tables. Uses
    /// the names in [outbox.columns].
    #[arg(long, value_name = "TABLE", conflicts_with_all = ["with", "only"])]
    adopt: Option<TableName>,
    /// Run pending migrations and roll them back.
    #[arg(long)]
    dry_run: bool,
    /// List applied and pending migrations.
    #[arg(long)]
    status: bool,
}

/// A tool whose table a view can replace.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Adapter {
    /// Debezium's outbox event router, with its default columns.
    Debezium,
}

impl Migrate {
    pub(crate) fn run(self) -> Result<(), Failed> {
        let config = self.config.load_for_database()?;
        let table = config.outbox.table.clone();
        if self.instead.print {
            let parts = self.series().into_iter().map(|series| match series {
                Series::Outbox => migrate::print(&table),
                Series::Module(module) => migrate::print_module(&table, module),
            });
            return output::raw(parts.collect::<Vec<_>>().join("\n").as_bytes()).map(|_| ());
        }
        if self.instead.print_roles {
            let sessions = if self.with_stats { Sessions::All } else { Sessions::Own };
            return output::raw(roles::print(&table, &self.role, sessions).as_bytes()).map(|_| ());
        }
        if let Some(Adapter::Debezium) = self.instead.print_adapter {
            return output::raw(debezium(&self.from, &table, &self.role).as_bytes()).map(|_| ());
        }
        if let Some(adopted) = &self.instead.adopt {
            return block_on(self.adopted.run(&config, adopted))?;
        }
        if self.instead.print_queries {
            let outbox = &config.outbox;
            let queries =
                statements::print(&Statements::new(&table, self.payload, outbox.on_sent, outbox, i32::MAX));
            return output::raw(queries.as_bytes()).map(|_| ());
        }
        block_on(self.with_database(&config, &table))?
    }

    /// The migration series that the arguments name.
    fn series(&self) -> Vec<Series> {
        let outbox = self.only.is_empty().then_some(Series::Outbox);
        let named = |module: &Module| self.with.contains(module) || self.only.contains(module);
        outbox.into_iter().chain(Module::ALL.into_iter().filter(named).map(Series::Module)).collect()
    }

    async fn with_database(&self, config: &Config, table: &TableName) -> Result<(), Failed> {
        let database = Database::new(&config.postgres, 1, Arc::new(Stats::new())).map_err(unavailable)?;
        let mut connection = database.get().await.map_err(unavailable)?;
        if self.instead.status {
            for migration in migrate::status(&mut connection, table).await.map_err(|error| failed(&error))? {
                let state = describe(&migration.state);
                output::line(&format!("{:04} {:<24} {state}", migration.number, migration.name))?;
            }
            for module in Module::ALL {
                for migration in migrate::module_status(&mut connection, table, module)
                    .await
                    .map_err(|error| failed(&error))?
                {
                    let name = of_module(migration.name, Some(module));
                    let state = match migration.state {
                        State::Pending => {
                            format!("not installed. To create it, run: outbox-relay migrate --with {module}")
                        }
                        other => describe(&other),
                    };
                    output::line(&format!("{:04} {name:<24} {state}", migration.number))?;
                }
            }
            return Ok(());
        }
        let mut series = self.series();
        for module in Module::ALL {
            let states = migrate::module_status(&mut connection, table, module)
                .await
                .map_err(|error| failed(&error))?;
            let is_installed = states.iter().any(|known| known.state != State::Pending);
            if is_installed && self.only.is_empty() && !series.contains(&Series::Module(module)) {
                series.push(Series::Module(module));
            }
        }
        let mut applied = Vec::new();
        for series in series {
            let of_series = if self.instead.dry_run {
                migrate::dry_run_series(&mut connection, table, series).await
            } else {
                migrate::apply_series(&mut connection, table, series).await
            };
            applied.extend(of_series.map_err(|error| failed(&error))?);
        }
        let verb = if self.instead.dry_run { "applied and rolled back (dry run)" } else { "applied" };
        if applied.is_empty() {
            output::line(&format!("{table}: up to date"))?;
        }
        for migration in applied {
            let name = of_module(migration.name.to_owned(), migration.module);
            output::line(&format!("{:04} {name:<24} {verb}", migration.number))?;
        }
        Ok(())
    }
}

fn of_module(name: String, module: Option<Module>) -> String {
    match module {
        None => name,
        Some(module) => format!("{name} (module {module})"),
    }
}

fn describe(state: &State) -> String {
    match state {
        State::Applied { at, .. } => {
            format!("applied {}", humantime::format_rfc3339_seconds(*at))
        }
        State::Pending => "pending".to_owned(),
        State::ChecksumDiffers { recorded } => format!("applied with different SQL (sha256 {recorded})"),
        State::Unknown { min_relay: Some(version) } => {
            format!("applied by a newer version, needs outbox-relay {version} or later")
        }
        State::Unknown { min_relay: None } => "applied by a newer version".to_owned(),
    }
}

fn unavailable(fault: relay::failure::PostgresFault) -> Failed {
    Failed::Unavailable(fault.into())
}

/// The message contains the cause. The chain of causes would repeat it.
pub(super) fn failed(error: &MigrateError) -> Failed {
    let message = anyhow::anyhow!("{error}");
    match error {
        MigrateError::Locked { .. } | MigrateError::InUse { .. } => Failed::Failure(message),
        _ => Failed::Configuration(message),
    }
}
