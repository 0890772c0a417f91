//! The migrations as SQL, for other migration tools.

use super::list::Migration;
use super::series::{Module, Series};
use super::status::{MigrationState, State};
use crate::postgres::table::TableName;

const HEADER: &str = "\
-- The migrations of the outbox {outbox}, each with an INSERT that records it.
--
-- Apply this file in one transaction:  psql -v ON_ERROR_STOP=1 --single-transaction -f this-file.sql
-- You can also apply it as one migration of Flyway, Atlas or a similar tool that opens a transaction itself. The relay
-- accepts the schema as if `outbox-relay migrate` had created it. Do not change the file: each INSERT records the checksum
-- of the original text. Later versions print additional migrations. Apply only the new ones.
";

const MODULE_HEADER: &str = "\
-- The migrations of the module {module} in the schema {schema}, each with an INSERT that records it. Apply this file in one
-- transaction, and do not change it.
";

/// The SQL of all migrations for `table` and of the table that records them, without BEGIN and COMMIT.
pub fn print(table: &TableName) -> String {
    print_series(table, Series::Outbox)
}

/// [`print()`], for a module in the schema of `table`.
pub fn print_module(table: &TableName, module: Module) -> String {
    print_series(table, Series::Module(module))
}

fn print_series(table: &TableName, series: Series) -> String {
    let header = match series {
        Series::Outbox => HEADER.to_owned(),
        Series::Module(module) => MODULE_HEADER.replace("{module}", module.name()),
    };
    let mut sql = table.render(&header);
    sql.push('\n');
    sql.push_str(&table.render(series.bookkeeping()));
    series.migrations().iter().for_each(|migration| print_migration(table, series, migration, &mut sql));
    sql
}

/// The SQL of the pending migrations of the outbox, as `migrate` runs them; empty if there are none.
pub(crate) fn print_pending(table: &TableName, states: &[MigrationState]) -> String {
    let is_pending = |migration: &&Migration| {
        states.iter().any(|known| known.number == migration.number && known.state == State::Pending)
    };
    let mut sql = String::new();
    for migration in Series::Outbox.migrations().iter().filter(is_pending) {
        if sql.is_empty() {
            sql.push_str(&table.render(Series::Outbox.bookkeeping()));
        }
        print_migration(table, Series::Outbox, migration, &mut sql);
    }
    sql
}

fn print_migration(table: &TableName, series: Series, migration: &Migration, sql: &mut String) {
    sql.push_str(&format!("\n-- {}\n\n", migration.file_name()));
    sql.push_str(&table.render(migration.template));
    sql.push('\n');
    sql.push_str(&series.record_sql(table, migration));
}
