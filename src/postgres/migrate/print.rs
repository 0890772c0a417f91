//! The migrations as plain SQL, for people who apply SQL with a tool of their own.

use std::fmt::Write as _;

use super::BOOKKEEPING;
use super::list::MIGRATIONS;
use crate::postgres::table::{TableName, quote_literal};

const HEADER: &str = "\
-- The outbox {outbox} as outbox-relay needs it, with the record that it was applied.
--
-- Apply it as one transaction:  psql -v ON_ERROR_STOP=1 --single-transaction -f this-file.sql
-- or as one migration of Flyway, Atlas or a tool like them, which open a transaction themselves. The daemon then
-- accepts the schema as if `outbox-relay migrate` had made it. Change nothing in it: the record at the end of each
-- part says that its text ran as it stands here. A later version prints further parts; apply those that are new.
";

/// The whole SQL of every migration for `table`, bookkeeping included; it has no BEGIN or COMMIT of its own.
pub fn print(table: &TableName) -> String {
    let mut sql = table.render(HEADER);
    sql.push('\n');
    sql.push_str(&table.render(BOOKKEEPING));
    for migration in MIGRATIONS {
        // Writing to a String cannot fail.
        let _ = write!(
            sql,
            "\n-- {}\n\n{}\nINSERT INTO {} (number, name, checksum)\nVALUES ({}, {}, {});\n",
            migration.file_name(),
            table.render(migration.template),
            table.migration(),
            migration.number,
            quote_literal(migration.name),
            quote_literal(&migration.checksum()),
        );
    }
    sql
}
