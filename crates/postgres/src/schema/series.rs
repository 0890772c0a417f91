//! The migrations of this version: their text, as `migrate` runs them and as scripts for psql and other migration tools, and their
//! status in the database. The outbox and the optional modules each have their own series of migrations.

use crate::access::roles::RelayRole;
use crate::connection::exec::{FIXED_SEARCH_PATH, check_settings, open};
use crate::schema::errors::{MigrateError, failed};
use crate::schema::relations;
use crate::sql::{bare, sql};
use crate::table::{Module, TableName, fill, quote_identifier, quote_literal};
use openssl::sha::sha256;
use settings::doctor::Finding;
use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;
use tokio_postgres::{Client, GenericClient, Row};

/// One numbered file of `sql/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// Its number, from 1 without gaps.
    pub number: i32,
    pub name: &'static str,
    /// Its text, with placeholders for the names.
    pub template: &'static str,
    /// The lowest version of the relay that can run on a schema with this migration.
    pub min_relay: &'static str,
}

/// The migrations of the outbox, in order. Never edit a released file: add another one.
pub const MIGRATIONS: [Migration; 7] = [
    migration(1, "outbox", sql!("0001_outbox")),
    migration(2, "setting", sql!("0002_setting")),
    migration(3, "wait", sql!("0003_wait")),
    migration(4, "audit", sql!("0004_audit")),
    migration(5, "identity", sql!("0005_identity")),
    migration(6, "no_wait", sql!("0006_no_wait")),
    migration(7, "privileges", sql!("0007_privileges")),
];

/// The migrations of the optional modules.
const INBOX: [Migration; 2] =
    [migration(1, "inbox", sql!("inbox/0001_inbox")), migration(2, "owner", sql!("inbox/0002_owner"))];
const IDEMPOTENCY: [Migration; 4] = [
    migration(1, "idempotency", sql!("idempotency/0001_idempotency")),
    migration(2, "owner", sql!("idempotency/0002_owner")),
    migration(3, "discard", sql!("idempotency/0003_discard")),
    migration(4, "read_first", sql!("idempotency/0004_read_first")),
];
const ONCE: [Migration; 2] =
    [migration(1, "once", sql!("once/0001_once")), migration(2, "owner", sql!("once/0002_owner"))];

/// A migration on which relays of every version can run.
///
/// If that does not hold, `min_relay` is the version that adds the migration. Then neither a running older relay nor a rollback
/// works: prefer two migrations, of which a later version applies the second one.
const fn migration(number: i32, name: &'static str, template: &'static str) -> Migration {
    Migration { number, name, template, min_relay: "0.1.0" }
}

impl Migration {
    /// The SHA-256 of the text with placeholders, so that it does not depend on the table's name.
    fn checksum(&self) -> String {
        sha256(self.template.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(super) fn is_pending(&self, states: &[MigrationState]) -> bool {
        states.iter().any(|known| known.number == self.number && known.state == State::Pending)
    }

    /// The file name in `sql/` or in the module's folder.
    fn file_name(&self) -> String {
        format!("{:04}_{}.sql", self.number, self.name)
    }
}

/// A series of migrations, and the table that records them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Series {
    /// The outbox, recorded in a table next to it.
    Outbox,
    /// A module, recorded once per schema: two outboxes in one schema share it.
    Module(Module),
}

impl Series {
    pub(crate) fn migrations(self) -> &'static [Migration] {
        match self {
            Series::Outbox => &MIGRATIONS,
            Series::Module(Module::Inbox) => &INBOX,
            Series::Module(Module::Idempotency) => &IDEMPOTENCY,
            Series::Module(Module::Once) => &ONCE,
        }
    }

    pub fn module(self) -> Option<Module> {
        match self {
            Series::Outbox => None,
            Series::Module(module) => Some(module),
        }
    }

    /// The template of the SQL that creates the records table.
    pub(super) fn bookkeeping(self) -> &'static str {
        match self {
            Series::Outbox => sql!("migrate/bookkeeping"),
            Series::Module(_) => sql!("migrate/module_bookkeeping"),
        }
    }

    /// The records table, as in the system catalogs.
    pub(super) fn record_name(self, table: &TableName) -> String {
        match self {
            Series::Outbox => table.name_of("{migration}"),
            Series::Module(_) => "pg_outbox_migration".to_owned(),
        }
    }

    pub(super) fn record(self, table: &TableName) -> String {
        table.sibling(&self.record_name(table))
    }

    pub(super) fn read_sql(self, table: &TableName) -> String {
        let of_module = match self {
            Series::Outbox => String::new(),
            Series::Module(module) => format!(" WHERE module = {}", quote_literal(module.name())),
        };
        let record = self.record(table);
        // Not as a column, which is missing until the next migration if the table was created without it.
        let min_relay = "pg_catalog.to_jsonb(r) ->> 'min_relay'";
        format!(
            "SELECT number, name, checksum, applied_at, {min_relay} FROM {record} AS r{of_module} ORDER BY number"
        )
    }

    pub(super) fn record_sql(self, table: &TableName, migration: &Migration) -> String {
        let Migration { number, name, min_relay, .. } = migration;
        let (name, checksum) = (quote_literal(name), quote_literal(&migration.checksum()));
        let (record, min_relay) = (self.record(table), quote_literal(min_relay));
        let (column, module) = match self {
            Series::Outbox => ("", String::new()),
            Series::Module(module) => ("module, ", quote_literal(module.name()) + ", "),
        };
        format!(
            "INSERT INTO {record} ({column}number, name, checksum, min_relay)\n\
             VALUES ({module}{number}, {name}, {checksum}, {min_relay});\n"
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationState {
    pub number: i32,
    pub name: String,
    pub state: State,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Applied with this text.
    Applied {
        at: SystemTime,
    },
    Pending,
    /// Applied with a different text, whose SHA-256 is recorded.
    ChecksumDiffers {
        recorded: String,
    },
    /// Applied by a newer version. `min_relay` is the lowest version of the relay that can run on it, or `None` if no valid one
    /// is recorded.
    Unknown {
        min_relay: Option<Version>,
    },
}

impl State {
    pub(crate) fn is_compatible(&self) -> bool {
        matches!(self, State::Applied { .. }) || self.is_newer_and_compatible()
    }

    /// Whether a newer version applied the migration, and this version can run on it.
    pub(crate) fn is_newer_and_compatible(&self) -> bool {
        matches!(self, State::Unknown { min_relay: Some(version) } if version.is_met())
    }
}

const SERVER: &str = "
SELECT current_setting('server_version_num')::integer, current_setting('server_version'), current_user::text";

/// Every migration of a series that this version or the database has, in order. Changes nothing.
pub async fn status(
    client: &mut Client,
    table: &TableName,
    series: Series,
) -> Result<Vec<MigrationState>, MigrateError> {
    let fault = failed(table);
    let transaction = open(client, true, &check_settings()).await.map_err(fault)?;
    let states = read_status(&transaction, table, series).await?;
    transaction.rollback().await.map_err(fault)?;
    Ok(states)
}

/// Fails if the records table exists and is not the outbox's own. Call it before each use of the table: a view, a trigger or a
/// default of another role could run code as this role.
pub(super) async fn require_own(
    client: &impl GenericClient,
    table: &TableName,
    series: Series,
) -> Result<(), MigrateError> {
    let foreign = relations::foreign(client, table, &[series.record_name(table)], false).await;
    let foreign = foreign.map_err(failed(table))?;
    match foreign.into_iter().next() {
        Some(Finding { place, problem, remedy, .. }) => {
            Err(MigrateError::Foreign { table: place, problem, remedy })
        }
        None => Ok(()),
    }
}

/// [`status`], in a transaction.
pub async fn read_status(
    client: &impl GenericClient,
    table: &TableName,
    series: Series,
) -> Result<Vec<MigrationState>, MigrateError> {
    let fault = failed(table);
    let server = client.query_typed_one(SERVER, &[]).await.map_err(fault)?;
    if server.get::<_, i32>(0) < 140_000 {
        return Err(MigrateError::ServerTooOld { table: table.to_string(), found: server.get(1) });
    }
    let role = quote_identifier(server.get(2));

    let params = params![table.schema() => TEXT, series.record_name(table) => TEXT];
    let exists = client.query_typed_one(bare(sql!("migrate/exists")), &params).await.map_err(fault)?;
    require_own(client, table, series).await?;
    let mut recorded = Vec::new();
    if exists.get(0) {
        let (schema, record) = (quote_identifier(table.schema()), series.record(table));
        let grant = format!("GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON {record} TO {role};");
        let read = client.query_typed(&series.read_sql(table), &[]).await;
        recorded = read.map_err(|error| MigrateError::new(table, error, &grant))?;
    }
    Ok(compare(series, &recorded))
}

fn compare(series: Series, recorded: &[Row]) -> Vec<MigrationState> {
    let mut recorded: BTreeMap<i32, &Row> = recorded.iter().map(|row| (row.get(0), row)).collect();
    let mut states = Vec::new();
    for migration in series.migrations() {
        let state = match recorded.remove(&migration.number) {
            None => State::Pending,
            Some(row) if row.get::<_, &str>(2) == migration.checksum() => State::Applied { at: row.get(3) },
            Some(row) => State::ChecksumDiffers { recorded: row.get(2) },
        };
        states.push(MigrationState { number: migration.number, name: migration.name.to_owned(), state });
    }
    states.extend(recorded.into_iter().map(|(number, row)| {
        let min_relay = row.get::<_, Option<&str>>(4).and_then(Version::parse);
        MigrationState { number, name: row.get(1), state: State::Unknown { min_relay } }
    }));
    states
}

/// `major.minor.patch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version([u32; 3]);

impl Version {
    /// `None` for other texts.
    pub fn parse(text: &str) -> Option<Version> {
        let numbers: Result<Vec<u32>, _> = text.split('.').map(str::parse).collect();
        numbers.ok()?.try_into().ok().map(Version)
    }

    /// Whether this binary has this version or a later one. A pre-release counts as its release.
    pub(crate) fn is_met(self) -> bool {
        let own = env!("CARGO_PKG_VERSION").split(['-', '+']).next();
        own.and_then(Version::parse).is_some_and(|own| self <= own)
    }
}

/// Which version a binary must be upgraded to that cannot run on a migration with this record.
pub(crate) fn to_upgrade_to(min_relay: Option<Version>) -> String {
    match min_relay.filter(|version| !version.is_met()) {
        Some(version) => format!("{version} or later"),
        None => "the version that applied the migration".to_owned(),
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Version([major, minor, patch]) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// The procedure of migration 3 is dropped by migration 6, so new outboxes never get it.
const SUPERSEDED: &str = "-- Superseded by migration 6.\n";

/// The migrations of a series, as the table needs them.
#[derive(Clone, Copy)]
pub struct Texts {
    pub(super) series: Series,
    /// If the outbox existed before: the type of the payload of the function that inserts an event. Otherwise, the first migration
    /// creates the table.
    adopted: Option<&'static str>,
}

impl Texts {
    /// For a table that is configured like this. Only an existing table can have renamed columns.
    pub fn of(series: Series, table: &TableName) -> Texts {
        Texts { series, adopted: (!table.columns().are_standard()).then_some("json") }
    }

    pub(super) fn of_adopted(payload_type: &'static str) -> Texts {
        Texts { series: Series::Outbox, adopted: Some(payload_type) }
    }

    pub(super) fn sql(self, migration: &Migration, table: &TableName) -> String {
        match (self.series, self.adopted, migration.number) {
            (Series::Outbox, _, 3) => SUPERSEDED.to_owned(),
            (Series::Outbox, Some(payload_type), _) => {
                table.render(&adopted(migration).replace("{payload_type}", payload_type))
            }
            _ => table.render(migration.template),
        }
    }

    fn print(self, migration: &Migration, table: &TableName, sql: &mut String) {
        sql.push_str(&format!("\n-- {}\n\n", migration.file_name()));
        sql.push_str(&self.sql(migration, table));
        sql.push('\n');
        sql.push_str(&self.series.record_sql(table, migration));
    }
}

/// The text of a migration of an adopted outbox, with placeholders: without the statements that create the table, and with the names
/// of its columns. An adopted table keeps its privileges.
fn adopted(migration: &Migration) -> &'static str {
    match migration.number {
        1 => sql!("migrate/adopted_outbox"),
        7 => sql!("migrate/adopted_privileges"),
        _ => migration.template,
    }
}

const ADOPTED: &str = "
-- [outbox.columns] is set, so the table exists already, and the first migration does not create it. The columns and indexes
-- that it lacks are in the output of `outbox-relay migrate --adopt`.
";

/// The SQL of all migrations for `table`, or of a module in its schema, and of the table that records them, without BEGIN and
/// COMMIT.
pub fn print(table: &TableName, series: Series) -> String {
    let header = match series {
        Series::Outbox => sql!("migrate/header").to_owned(),
        Series::Module(module) => sql!("migrate/module_header").replace("{module}", module.name()),
    };
    let mut sql = table.render(&header);
    sql.push('\n');
    sql.push_str(FIXED_SEARCH_PATH);
    sql.push_str(&table.render(series.bookkeeping()));
    let texts = Texts::of(series, table);
    if series == Series::Outbox && texts.adopted.is_some() {
        sql.push_str(&table.render(ADOPTED));
    }
    series.migrations().iter().for_each(|migration| texts.print(migration, table, &mut sql));
    sql
}

/// The SQL of the pending migrations of the outbox, as `migrate` runs them; empty if there are none.
pub fn print_pending(table: &TableName, states: &[MigrationState], texts: Texts) -> String {
    let mut sql = String::new();
    for migration in MIGRATIONS.iter().filter(|migration| migration.is_pending(states)) {
        if sql.is_empty() {
            sql.push_str(&table.render(Series::Outbox.bookkeeping()));
        }
        texts.print(migration, table, &mut sql);
    }
    sql
}

/// The transaction that replaces a table of Debezium's outbox event router with a view. Its last row is a marker.
pub fn debezium(from: &TableName, outbox: &TableName, role: &RelayRole) -> String {
    fill(sql!("migrate/debezium"), |placeholder| match placeholder {
        "from" => Some(from.to_string()),
        "before" => Some(from.display_derived("_before")),
        "before_with_schema" => Some(from.display_sibling(&format!("{}_before", from.table()))),
        "function" => Some(from.display_sibling(&format!("{}_to_outbox", from.table()))),
        "to" => Some(outbox.to_string()),
        "writer" => Some(match role.writer() {
            plain if plain.chars().all(|c| c.is_ascii_lowercase() || c == '_') => plain,
            other => quote_identifier(&other),
        }),
        _ => outbox.value_of(placeholder),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::unknown_placeholders;
    use std::path::{Path, PathBuf};

    fn folder(series: &Series) -> PathBuf {
        let sql = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sql");
        series.module().map_or(sql.clone(), |module| sql.join(module.name()))
    }

    fn every_series() -> impl Iterator<Item = Series> {
        [Series::Outbox].into_iter().chain(Module::ALL.map(Series::Module))
    }

    #[test]
    fn every_file_in_sql_is_listed_in_order_without_gaps() {
        for series in every_series() {
            let mut files: Vec<String> = std::fs::read_dir(folder(&series))
                .unwrap()
                .map(Result::unwrap)
                .filter(|entry| entry.file_type().unwrap().is_file())
                .map(|entry| entry.file_name().into_string().unwrap())
                .filter(|name| name.starts_with("0"))
                .collect();
            files.sort();
            let listed: Vec<String> = series.migrations().iter().map(Migration::file_name).collect();
            assert_eq!(files, listed);
            let numbers: Vec<i32> = series.migrations().iter().map(|migration| migration.number).collect();
            assert_eq!(numbers, (1..).take(numbers.len()).collect::<Vec<_>>());
        }
        let folders = std::fs::read_dir(folder(&Series::Outbox)).unwrap().map(|entry| entry.unwrap().path());
        let migrates = |path: &PathBuf| {
            path.is_dir()
                && path
                    .read_dir()
                    .unwrap()
                    .any(|file| file.unwrap().file_name().as_encoded_bytes()[0] == b'0')
        };
        assert_eq!(
            folders.filter(migrates).count(),
            Module::ALL.len(),
            "each module has a folder, each folder of migrations a module"
        );
    }

    #[test]
    fn this_version_can_run_on_every_migration() {
        for migration in every_series().flat_map(Series::migrations) {
            assert!(version(migration.min_relay).is_met(), "{}", migration.file_name());
        }
    }

    #[test]
    fn every_placeholder_in_sql_is_known() {
        for series in every_series() {
            for migration in series.migrations() {
                assert_eq!(unknown_placeholders(migration.template), [""; 0], "{}", migration.file_name());
            }
            assert_eq!(unknown_placeholders(series.bookkeeping()), [""; 0]);
        }
    }

    fn version(text: &str) -> Version {
        Version::parse(text).unwrap()
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(version("0.9.0") < version("0.10.0"));
        assert!(version("1.0.0") > version("0.99.99"));
        let own = version(env!("CARGO_PKG_VERSION"));
        assert!(version("0.0.1").is_met() && own.is_met() && !version("99.0.0").is_met());
        assert_eq!(version("1.20.3").to_string(), "1.20.3");
    }

    #[test]
    fn other_texts_are_not_versions() {
        for text in ["", "1", "1.2", "1.2.3.4", "1.2.x", "1.2.3-rc.1", "1.2.-3", " 1.2.3"] {
            assert_eq!(Version::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn adopted_outbox_with_standard_names_gets_the_same_statements_except_for_the_table() {
        let table: TableName = "app.outbox".parse().unwrap();
        let texts = [Texts::of(Series::Outbox, &table), Texts::of_adopted("json")];
        for migration in &MIGRATIONS {
            let [created, sql] = texts.map(|texts| texts.sql(migration, &table));
            let Some(omitted) = created.strip_suffix(&sql) else {
                panic!("{}:\n{sql}\nis not the end of\n{created}", migration.file_name())
            };
            let statements = ["CREATE TABLE \"app\".\"outbox\" (", "CREATE INDEX \"outbox_pending\" ON"];
            let first = migration.number == 1;
            assert_eq!(omitted.matches("\nCREATE ").count(), if first { 2 } else { 0 }, "{omitted}");
            assert!(!first || statements.iter().all(|statement| omitted.contains(statement)), "{omitted}");
        }
    }

    /// Whether the statement that begins here names a column of the alias `o` that could be renamed.
    fn has_standard_column(statement: &str) -> bool {
        let statement = statement.split(';').next().unwrap_or(statement);
        statement
            .match_indices(" o.")
            .any(|(at, _)| !statement[at + 3..].starts_with('{') && !statement[at + 3..].starts_with("xmin"))
    }

    /// A later migration that names columns of the outbox needs a text for renamed columns.
    #[test]
    fn only_listed_statements_name_columns_of_the_outbox() {
        for migration in &MIGRATIONS {
            if migration.number == 3 {
                continue; // superseded
            }
            let template = adopted(migration).replace("{payload_type}", "json");
            assert_eq!(unknown_placeholders(&template), [""; 0], "{}", migration.file_name());
            for (before, _) in template.match_indices("{outbox}") {
                let rest = &template[before..];
                let known = rest.starts_with("{outbox} ({aggregate_type_column}, ")
                    || rest.starts_with("{outbox} AS o") && !has_standard_column(rest);
                assert!(known, "{}: {}", migration.file_name(), &rest[..rest.len().min(60)]);
            }
        }
    }

    #[test]
    fn names_are_quoted_only_where_sql_needs_it() {
        let outbox: TableName = "app.outbox".parse().unwrap();
        let sql = debezium(&"outboxevent".parse().unwrap(), &outbox, &"relay".parse().unwrap());
        assert!(
            !sql.contains('"') && sql.contains("INSERT INTO app.outbox (event_id, aggregate_type,"),
            "{sql}"
        );
        assert!(sql.contains("FROM public.outboxevent_before WHERE false"), "{sql}");
        let from: TableName = "\"My\".\"Out\"".parse().unwrap();
        let sql = debezium(&from, &outbox, &"my relay".parse().unwrap());
        assert!(sql.contains("ALTER TABLE \"My\".\"Out\" RENAME TO \"Out_before\";"), "{sql}");
        assert!(sql.contains("FUNCTION \"My\".\"Out_to_outbox\"()"), "{sql}");
        assert!(sql.contains("TO \"my relay_writer\";"), "{sql}");
    }
}
