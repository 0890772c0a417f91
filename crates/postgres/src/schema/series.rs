//! The migrations of this version, and their status in the database. The outbox and the optional modules each have their own series
//! of migrations.

use crate::connection::exec::{check_settings, open};
use crate::schema::errors::{MigrateError, failed};
use crate::schema::own;
use crate::schema::own::Foreign;
use crate::sql::{bare, sql};
use crate::table::{TableName, quote_identifier, quote_literal};
use openssl::sha::sha256;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient};

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
pub(super) const INBOX: [Migration; 2] =
    [migration(1, "inbox", sql!("inbox/0001_inbox")), migration(2, "owner", sql!("inbox/0002_owner"))];
pub(super) const IDEMPOTENCY: [Migration; 2] = [
    migration(1, "idempotency", sql!("idempotency/0001_idempotency")),
    migration(2, "owner", sql!("idempotency/0002_owner")),
];
pub(super) const ONCE: [Migration; 2] =
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
    pub fn checksum(&self) -> String {
        sha256(self.template.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The file name in `sql/` or in the module's folder.
    pub(crate) fn file_name(&self) -> String {
        format!("{:04}_{}.sql", self.number, self.name)
    }
}

/// An optional part of the schema, for APIs and consumers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Module {
    /// For consumers: the processed events of each subscriber.
    Inbox,
    /// For APIs: requests with idempotency keys, and their responses.
    Idempotency,
    /// Claims of keys for a limited time.
    Once,
}

/// The text is not the name of a module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown module {0:?}. The modules are inbox, idempotency and once")]
pub struct UnknownModule(String);

impl Module {
    pub const ALL: [Module; 3] = [Module::Inbox, Module::Idempotency, Module::Once];

    /// The name in commands, and of the folder in `sql/`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Module::Inbox => "inbox",
            Module::Idempotency => "idempotency",
            Module::Once => "once",
        }
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Module {
    type Err = UnknownModule;

    fn from_str(text: &str) -> Result<Module, UnknownModule> {
        let named = Module::ALL.into_iter().find(|module| module.name() == text);
        named.ok_or_else(|| UnknownModule(text.to_owned()))
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
    /// The migrations, in order.
    pub(crate) fn migrations(self) -> &'static [Migration] {
        match self {
            Series::Outbox => &MIGRATIONS,
            Series::Module(Module::Inbox) => &INBOX,
            Series::Module(Module::Idempotency) => &IDEMPOTENCY,
            Series::Module(Module::Once) => &ONCE,
        }
    }

    /// The module, or `None` for the outbox.
    pub(crate) fn module(self) -> Option<Module> {
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

    /// SQL that reads the records.
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

    /// SQL that records a migration.
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

/// A migration and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationState {
    /// The module that it belongs to; `None` for the outbox.
    pub module: Option<Module>,
    pub number: i32,
    pub name: String,
    pub state: State,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Applied with this text.
    Applied {
        at: SystemTime,
        checksum: String,
    },
    Pending,
    /// Applied with a different text.
    ChecksumDiffers {
        /// The SHA-256 of the applied text.
        recorded: String,
    },
    /// Applied by a newer version.
    Unknown {
        /// The lowest version of the relay that can run on it, if a valid one is recorded.
        min_relay: Option<Version>,
    },
}

impl State {
    /// Whether a newer version applied the migration, and this version can run on it.
    pub(crate) fn is_newer_and_compatible(&self) -> bool {
        matches!(self, State::Unknown { min_relay: Some(version) } if version.is_met())
    }
}

const SERVER: &str = "
SELECT current_setting('server_version_num')::integer, current_setting('server_version'), current_user::text";

/// Every migration of the outbox that this version or the database has, in order. Changes nothing.
pub async fn status(client: &mut Client, table: &TableName) -> Result<Vec<MigrationState>, MigrateError> {
    examine_series(client, table, Series::Outbox).await
}

/// [`status`], for a module.
pub async fn module_status(
    client: &mut Client,
    table: &TableName,
    module: Module,
) -> Result<Vec<MigrationState>, MigrateError> {
    examine_series(client, table, Series::Module(module)).await
}

/// [`status`], in a transaction.
pub async fn read(
    client: &impl GenericClient,
    table: &TableName,
) -> Result<Vec<MigrationState>, MigrateError> {
    read_series(client, table, Series::Outbox).await
}

/// [`read_series`], in a transaction of its own.
pub(super) async fn examine_series(
    client: &mut Client,
    table: &TableName,
    series: Series,
) -> Result<Vec<MigrationState>, MigrateError> {
    let fault = failed(table);
    let transaction = open(client, true, &check_settings()).await.map_err(fault)?;
    let states = read_series(&transaction, table, series).await?;
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
    let foreign = own::foreign(client, table, &[series.record_name(table)]).await;
    let foreign = foreign.map_err(failed(table))?;
    match foreign.into_iter().next() {
        Some(Foreign { problem, remedy, .. }) => {
            Err(MigrateError::Foreign { table: series.record(table), problem, remedy })
        }
        None => Ok(()),
    }
}

pub(super) async fn read_series(
    client: &impl GenericClient,
    table: &TableName,
    series: Series,
) -> Result<Vec<MigrationState>, MigrateError> {
    let fault = failed(table);
    let server = client.query_typed(SERVER, &[]).await.map_err(fault)?;
    let Some(server) = server.first() else { return Ok(Vec::new()) };
    if server.get::<_, i32>(0) < 140_000 {
        return Err(MigrateError::ServerTooOld { table: table.to_string(), found: server.get(1) });
    }
    let role = quote_identifier(server.get(2));

    let relation = series.record_name(table);
    let exists = client
        .query_typed(bare(sql!("migrate/exists")), &[(&table.schema(), Type::TEXT), (&relation, Type::TEXT)])
        .await
        .map_err(fault)?;
    require_own(client, table, series).await?;
    let mut recorded = BTreeMap::new();
    if exists.first().is_some_and(|row| row.get(0)) {
        let grant = || {
            let schema = quote_identifier(table.schema());
            let record = series.record(table);
            format!("GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON {record} TO {role};")
        };
        let rows = client
            .query_typed(&series.read_sql(table), &[])
            .await
            .map_err(|error| MigrateError::new(&table.to_string(), error.into(), grant))?;
        recorded.extend(rows.iter().map(|row| (row.get(0), Record::from(row))));
    }
    Ok(compare(series, recorded))
}

struct Record {
    name: String,
    checksum: String,
    at: SystemTime,
    min_relay: Option<Version>,
}

impl From<&tokio_postgres::Row> for Record {
    fn from(row: &tokio_postgres::Row) -> Self {
        let min_relay = row.get::<_, Option<&str>>(4).and_then(|text| text.parse().ok());
        Self { name: row.get(1), checksum: row.get(2), at: row.get(3), min_relay }
    }
}

/// Compares the list of this version with the records.
fn compare(series: Series, mut recorded: BTreeMap<i32, Record>) -> Vec<MigrationState> {
    let module = series.module();
    let mut states = Vec::new();
    for migration in series.migrations() {
        let state = match recorded.remove(&migration.number) {
            None => State::Pending,
            Some(Record { checksum, at, .. }) if checksum == migration.checksum() => {
                State::Applied { at, checksum }
            }
            Some(Record { checksum, .. }) => State::ChecksumDiffers { recorded: checksum },
        };
        let (number, name) = (migration.number, migration.name.to_owned());
        states.push(MigrationState { module, number, name, state });
    }
    states.extend(recorded.into_iter().map(|(number, record)| MigrationState {
        module,
        number,
        name: record.name,
        state: State::Unknown { min_relay: record.min_relay },
    }));
    states
}

/// `major.minor.patch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version([u32; 3]);

/// The text is not a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a version of the form major.minor.patch")]
pub struct NotAVersion;

/// The version of this binary, without a pre-release suffix.
const OWN: &str = concat!(
    env!("CARGO_PKG_VERSION_MAJOR"),
    ".",
    env!("CARGO_PKG_VERSION_MINOR"),
    ".",
    env!("CARGO_PKG_VERSION_PATCH")
);

impl Version {
    /// Whether this binary has this version or a later one.
    pub(crate) fn is_met(self) -> bool {
        OWN.parse().is_ok_and(|own: Version| self <= own)
    }
}

/// Which version a binary must be upgraded to that cannot run on a migration with this record.
pub(crate) fn to_upgrade_to(min_relay: Option<Version>) -> String {
    match min_relay.filter(|version| !version.is_met()) {
        Some(version) => format!("{version} or later"),
        None => "the version that applied the migration".to_owned(),
    }
}

impl FromStr for Version {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Version, NotAVersion> {
        let numbers: Result<Vec<u32>, _> = text.split('.').map(str::parse).collect();
        numbers.ok().and_then(|numbers| numbers.try_into().ok()).map(Version).ok_or(NotAVersion)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Version([major, minor, patch]) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::migrate::Series;
    use crate::schema::series::Module;
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
            let min_relay: Version = migration.min_relay.parse().unwrap();
            assert!(min_relay.is_met(), "{}", migration.file_name());
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

    #[test]
    fn module_names_round_trip() {
        for module in Module::ALL {
            assert_eq!(module.to_string().parse(), Ok(module));
        }
        assert_eq!("outbox".parse::<Module>(), Err(UnknownModule("outbox".to_owned())));
    }

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(version("0.9.0") < version("0.10.0"));
        assert!(version("1.0.0") > version("0.99.99"));
        assert!(version("0.0.1").is_met() && version(OWN).is_met() && !version("99.0.0").is_met());
        assert_eq!(version("1.20.3").to_string(), "1.20.3");
    }

    #[test]
    fn other_texts_are_not_versions() {
        for text in ["", "1", "1.2", "1.2.3.4", "1.2.x", "1.2.3-rc.1", "1.2.-3", " 1.2.3"] {
            assert_eq!(text.parse::<Version>(), Err(NotAVersion), "{text:?}");
        }
    }
}
