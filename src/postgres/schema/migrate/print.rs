//! The migrations as SQL, for other migration tools.

use super::series::{Module, Series};
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
    for migration in series.migrations() {
        sql.push_str(&format!("\n-- {}\n\n", migration.file_name()));
        sql.push_str(&table.render(migration.template));
        sql.push('\n');
        sql.push_str(&series.record_sql(table, migration));
    }
    sql
}
