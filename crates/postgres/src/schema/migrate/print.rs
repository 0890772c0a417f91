//! The migrations as SQL, for other migration tools.

use super::list::Migration;
use super::origin::Origin;
use super::series::{Module, Series};
use super::status::{MigrationState, State};
use crate::connection::session::FIXED_SEARCH_PATH;
use crate::table::TableName;

const HEADER: &str = "\
-- The migrations of the outbox {outbox}, each with an INSERT that records it.
--
-- Apply this file in one transaction:  psql -v ON_ERROR_STOP=1 --single-transaction -f this-file.sql
-- You can also apply it as one migration of Flyway, Atlas or a similar tool that opens a transaction itself. The relay
-- accepts the schema as if `outbox-relay migrate` had created it. Do not change the file: each INSERT records the checksum
-- of the original text. Later versions print additional migrations. Apply only the new ones, and before them the statements for
-- the table of migrations, which can be repeated.
";

const MODULE_HEADER: &str = "\
-- The migrations of the {module} module in the schema {schema}, each with an INSERT that records it. Apply this file in one
-- transaction, and do not change it.
";

const ADOPTED: &str = "
-- [outbox.columns] is set, so the table exists already, and the first migration does not create it. The columns and indexes
-- that it lacks are in the output of `outbox-relay migrate --adopt`.
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
    sql.push_str(FIXED_SEARCH_PATH);
    sql.push_str(&table.render(series.bookkeeping()));
    let origin = Origin::of(table);
    if series == Series::Outbox && origin != Origin::Created {
        sql.push_str(&table.render(ADOPTED));
    }
    let of_series = (series, origin);
    series.migrations().iter().for_each(|migration| print_migration(table, of_series, migration, &mut sql));
    sql
}

/// The SQL of the pending migrations of the outbox, as `migrate` runs them; empty if there are none.
pub fn print_pending(table: &TableName, states: &[MigrationState]) -> String {
    print_adopted(table, states, Origin::of(table))
}

/// [`print_pending`], for a table of this origin.
pub fn print_adopted(table: &TableName, states: &[MigrationState], origin: Origin) -> String {
    let is_pending = |migration: &&Migration| {
        states.iter().any(|known| known.number == migration.number && known.state == State::Pending)
    };
    let mut sql = String::new();
    for migration in Series::Outbox.migrations().iter().filter(is_pending) {
        if sql.is_empty() {
            sql.push_str(&table.render(Series::Outbox.bookkeeping()));
        }
        print_migration(table, (Series::Outbox, origin), migration, &mut sql);
    }
    sql
}

fn print_migration(
    table: &TableName,
    (series, origin): (Series, Origin),
    migration: &Migration,
    sql: &mut String,
) {
    sql.push_str(&format!("\n-- {}\n\n", migration.file_name()));
    sql.push_str(&origin.sql(series, migration, table));
    sql.push('\n');
    sql.push_str(&series.record_sql(table, migration));
}
