//! `outbox-relay migrate`: creates or upgrades the tables, makes an existing table the outbox, or prints the SQL.

use super::failed::Failed;
use super::frame::{ConfigFile, block_on, database};
use super::output;
use crate::config::Config;
use clap::{ArgGroup, Args, ValueEnum};
use postgres::access::roles::{self, RelayRole};
use postgres::columns::PayloadType;
use postgres::connection::pool::has_transaction_pooler;
use postgres::cycle::statements::{self, Statements};
use postgres::schema::adopt::{self, Adoption, ExistingRows};
use postgres::schema::check::check;
use postgres::schema::errors::{AdoptError, CheckError, MigrateError};
use postgres::schema::migrate::{self, MigrationState, Series, State, debezium};
use postgres::table::Module;
use postgres::table::TableName;
use relay::failure::PostgresFault;
use settings::text::{in_line, time};
use tokio_postgres::Client;

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/migrate.txt").trim_ascii_end())]
#[command(group(ArgGroup::new("names_roles").args(["print_roles", "print_adapter"])))]
pub(crate) struct Migrate {
    /// Also create these optional modules in the outbox's schema: inbox, idempotency, once. Existing modules are
    /// always upgraded.
    #[arg(long, value_delimiter = ',', value_name = "MODULES")]
    with: Vec<Module>,
    /// Create only these modules, for a database without an outbox. With --print-roles: print only their groups.
    #[arg(long, value_delimiter = ',', value_name = "MODULES")]
    #[arg(conflicts_with_all = ["with", "with_stats", "print_queries", "print_adapter", "adopt", "status"])]
    only: Vec<Module>,
    #[command(flatten)]
    instead: Instead,
    /// With --adopt: run the SQL instead of printing it.
    #[arg(long, requires = "adopt")]
    apply: bool,
    /// With --adopt: what happens to the rows of the table, if nothing shows that one of them was sent.
    #[arg(long, value_name = "CHOICE", value_enum, requires = "adopt")]
    existing_rows: Option<Rows>,
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

/// What happens to the rows of an adopted table, if nothing shows that one of them was sent.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Rows {
    /// The relay publishes them.
    Publish,
    /// They count as sent. The reaper deletes them after the retention period.
    Sent,
}

impl Migrate {
    pub(crate) fn run(self, file: &ConfigFile) -> Result<(), Failed> {
        let config = file.load_for_database()?;
        let (table, outbox) = (&config.outbox.table, &config.outbox);
        if self.instead.print {
            let parts = self.series().into_iter().map(|series| migrate::print(table, series));
            output::unchanged(parts.collect::<Vec<_>>().join("\n"))
        } else if self.instead.print_roles {
            output::unchanged(match &*self.only {
                [] => roles::print(table, &self.role, self.with_stats),
                only => roles::print_modules(table, &self.role, only),
            })
        } else if let Some(Adapter::Debezium) = self.instead.print_adapter {
            output::unchanged(debezium(&self.from, table, &self.role))
        } else if self.instead.print_queries {
            let statements = Statements::new(table, self.payload, outbox.on_sent, outbox, i32::MAX);
            output::unchanged(statements::print(&statements))
        } else if let Some(adopted) = &self.instead.adopt {
            block_on(self.adopt(&config, adopted))?
        } else if self.instead.status {
            block_on(status(&config))?
        } else {
            block_on(self.migrate(&config))?
        }
    }

    /// The migration series that the arguments name.
    fn series(&self) -> Vec<Series> {
        let outbox = self.only.is_empty().then_some(Series::Outbox);
        let named = |module: &Module| self.with.contains(module) || self.only.contains(module);
        outbox.into_iter().chain(Module::ALL.into_iter().filter(named).map(Series::Module)).collect()
    }

    async fn migrate(&self, config: &Config) -> Result<(), Failed> {
        let table = &config.outbox.table;
        let database = database(config, 1)?;
        let mut connection = database.get().await?;
        let mut series = self.series();
        for module in Module::ALL {
            let states = migrate::status(&mut connection, table, Series::Module(module)).await?;
            if is_installed(&states) && self.only.is_empty() && !series.contains(&Series::Module(module)) {
                series.push(Series::Module(module));
            }
        }
        let verb = if self.instead.dry_run { "applied and rolled back (dry run)" } else { "applied" };
        let (mut printed, mut is_up_to_date) = (Ok(()), true);
        for series in series {
            let mut applied = Vec::new();
            let ended = match self.instead.dry_run {
                true => migrate::dry_run(&mut connection, table, series).await.map(|all| applied = all),
                false => migrate::apply_series(&mut connection, table, series, &mut applied).await,
            };
            // Before the error, because earlier migrations stay applied.
            for migration in &applied {
                is_up_to_date = false;
                printed = printed.and(line(migration.number, migration.name, series.module(), verb));
            }
            ended?;
        }
        printed?;
        if is_up_to_date {
            return output::text(format!("{table}: up to date\n"));
        }
        Ok(())
    }

    async fn adopt(&self, config: &Config, adopted: &TableName) -> Result<(), Failed> {
        let table = &config.outbox.table;
        if !table.is_same_table(adopted) {
            return Err(Failed::configuration(format!(
                "[outbox] table is {table}, so the relay would not read {adopted}. Set [outbox] table = \"{adopted}\""
            )));
        }
        let database = database(config, 2)?;
        let unavailable = |fault: PostgresFault| Failed::Unavailable(fault.into());
        if self.apply && has_transaction_pooler(&database).await.map_err(unavailable)? {
            return Err(Failed::configuration(
                "[postgres] url connects through a pooler in transaction mode, which cannot build an index concurrently. \
                 Connect to the server directly, for example with OUTBOX_RELAY__POSTGRES__URL",
            ));
        }
        let mut connection = database.get().await?;
        let rows = self.existing_rows.map(|rows| match rows {
            Rows::Publish => ExistingRows::Publish,
            Rows::Sent => ExistingRows::Sent,
        });
        let adoption = adopt::plan(&mut connection, table, rows).await?;
        match self.apply {
            true => apply(&mut connection, config, &adoption).await,
            false => output::unchanged(adopt::print(table, &adoption.steps)),
        }
    }
}

async fn status(config: &Config) -> Result<(), Failed> {
    let table = &config.outbox.table;
    let database = database(config, 1)?;
    let mut connection = database.get().await?;
    for series in [Series::Outbox].into_iter().chain(Module::ALL.map(Series::Module)) {
        let states = migrate::status(&mut connection, table, series).await?;
        let is_installed = is_installed(&states);
        for known in states {
            let state = match (known.state, series.module()) {
                (State::Pending, Some(module)) if !is_installed => {
                    format!("not installed. To create it, run: outbox-relay migrate --with {module}")
                }
                (state, _) => describe(&state),
            };
            line(known.number, &known.name, series.module(), &state)?;
        }
    }
    Ok(())
}

fn is_installed(states: &[MigrationState]) -> bool {
    states.iter().any(|known| known.state != State::Pending)
}

fn line(number: i32, name: &str, module: Option<Module>, state: &str) -> Result<(), Failed> {
    let name = module.map_or(name.to_owned(), |module| format!("{name} (module {module})"));
    // The database can contain any name and checksum.
    output::text(in_line(&format!("{number:04} {name:<24} {state}"), usize::MAX) + "\n")
}

fn describe(state: &State) -> String {
    match state {
        State::Applied { at } => format!("applied {}", time(*at)),
        State::Pending => "pending".to_owned(),
        State::ChecksumDiffers { recorded } => format!("applied with different SQL (sha256 {recorded})"),
        State::Unknown { min_relay: Some(version) } => {
            format!("applied by a newer version, needs outbox-relay {version} or later")
        }
        State::Unknown { min_relay: None } => "applied by a newer version".to_owned(),
    }
}

async fn apply(client: &mut Client, config: &Config, adoption: &Adoption) -> Result<(), Failed> {
    let table = &config.outbox.table;
    if adoption.steps.is_empty() {
        return output::text(format!("{table}: nothing is missing\n"));
    }
    adopt::prepare(client, table, adoption).await?;
    for step in &adoption.steps {
        if step.waits() {
            output::note(&format!(
                "{table}: next step, which may wait for other transactions: {}",
                step.purpose
            ));
        }
        adopt::apply(client, table, adoption, step).await?;
        output::line(&format!("{table}: done: {}", step.purpose))?;
    }
    let checked = check(client, table, config.outbox.topic_allow.is_some(), Some(&[])).await;
    checked.map_err(AdoptError::from)?;
    output::text(format!(
        "{table}: adopted. Next, apply the output of `outbox-relay migrate --print-roles`\n"
    ))
}

/// The message contains the cause. The chain of causes would repeat it.
impl From<MigrateError> for Failed {
    fn from(error: MigrateError) -> Failed {
        match error {
            MigrateError::Locked { .. } | MigrateError::InUse { .. } => Failed::failure(error),
            MigrateError::Server { ref source, .. } if source.is_connection_lost() => {
                Failed::unavailable(error)
            }
            _ => Failed::configuration(error),
        }
    }
}

impl From<AdoptError> for Failed {
    fn from(error: AdoptError) -> Failed {
        match error {
            AdoptError::Migrate(migrate) => migrate.into(),
            AdoptError::ExistingRows { .. } => Failed::Usage(error.to_string()),
            AdoptError::Step { source: ref server, .. }
            | AdoptError::Check(CheckError::Server(ref server))
            | AdoptError::Server(ref server)
                if server.is_connection_lost() =>
            {
                Failed::unavailable(error)
            }
            AdoptError::Step { .. } | AdoptError::Locked { .. } => Failed::failure(error),
            AdoptError::Refused { .. } | AdoptError::Check(_) | AdoptError::Server(_) => {
                Failed::configuration(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postgres::connection::errors::ServerError;

    /// An error of the client library has no SQLSTATE, like that of a lost connection.
    #[test]
    fn lost_connection_is_unavailable() {
        let lost = || ServerError::from("host".parse::<tokio_postgres::Config>().unwrap_err());
        let table = || "app.outbox".to_owned();
        let migrating = || MigrateError::Server { table: table(), source: lost() };
        let step = AdoptError::Step { table: table(), step: "x".to_owned(), source: lost(), remedy: "" };
        for failed in [
            Failed::from(migrating()),
            Failed::from(AdoptError::Migrate(migrating())),
            Failed::from(AdoptError::Check(CheckError::Server(lost()))),
            Failed::from(step),
        ] {
            assert!(matches!(failed, Failed::Unavailable(_)), "{failed:?}");
        }
    }
}
