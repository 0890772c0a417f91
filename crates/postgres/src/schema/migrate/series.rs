//! The outbox and the optional modules. Each has its own series of migrations.

use std::fmt;
use std::str::FromStr;

use super::list::{IDEMPOTENCY, INBOX, MIGRATIONS, Migration, ONCE};
use crate::table::{TableName, quote_literal};

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
    /// All modules.
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
            Series::Outbox => include_str!("bookkeeping.sql"),
            Series::Module(_) => include_str!("module_bookkeeping.sql"),
        }
    }

    /// The records table, as in the system catalogs.
    pub(super) fn record_name(self, table: &TableName) -> String {
        match self {
            Series::Outbox => table.name_of("{migration}"),
            Series::Module(_) => "pg_outbox_migration".to_owned(),
        }
    }

    /// The records table, quoted.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_names_round_trip() {
        for module in Module::ALL {
            assert_eq!(module.to_string().parse(), Ok(module));
        }
        assert_eq!("outbox".parse::<Module>(), Err(UnknownModule("outbox".to_owned())));
    }
}
