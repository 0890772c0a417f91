//! The migrations as plain SQL, for people who apply SQL with a tool of their own.

use super::series::{Module, Series};
use crate::postgres::table::TableName;

const HEADER: &str = "\
-- The outbox {outbox} as outbox-relay needs it, with the record that it was applied.
--
-- Apply it as one transaction:  psql -v ON_ERROR_STOP=1 --single-transaction -f this-file.sql
-- or as one migration of Flyway, Atlas or a tool like them, which open a transaction themselves. The daemon then
-- accepts the schema as if `outbox-relay migrate` had made it. Change nothing in it: the record at the end of each
-- part says that its text ran as it stands here. A later version prints further parts; apply those that are new.
";

const MODULE_HEADER: &str = "\
-- The module {module} in the schema {schema}, with the record that it was applied. Apply it as one transaction, and
-- change nothing in it.
";

/// The whole SQL of every migration for `table`, bookkeeping included; it has no BEGIN or COMMIT of its own.
pub fn print(table: &TableName) -> String {
    print_series(table, Series::Outbox)
}

/// The same for a module beside it.
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
