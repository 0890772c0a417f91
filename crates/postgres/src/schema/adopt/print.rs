//! The steps as a script for psql.

use super::steps::{How, Step};
use crate::table::TableName;

const HEADER: &str = "\
-- Turns {outbox} into an outbox. `outbox-relay migrate --adopt --apply` runs these statements, and repeats those that could
-- not get their lock in time. To run them yourself, connect as the owner of the table, not through a pooler in transaction mode:
--
--   psql -v ON_ERROR_STOP=1 -f this-file.sql
--
-- Do not run them in one transaction, because indexes are built concurrently. After an interruption, print them again.
SET search_path = pg_catalog, pg_temp;
SET statement_timeout = 0;
SET lock_timeout = '1s';
";

/// The script; a comment if nothing is missing.
pub fn print(table: &TableName, steps: &[Step]) -> String {
    if steps.is_empty() {
        return format!("-- {table}: nothing is missing\n");
    }
    let mut script = table.render(HEADER);
    for Step { purpose, sql, how } in steps {
        let sql = sql.trim();
        script.push_str(&match how {
            How::Transaction | How::Migrations => format!("\n-- To {purpose}:\nBEGIN;\n{sql}\nCOMMIT;\n"),
            How::Alone => format!("\n-- To {purpose}:\n{sql}\n"),
            How::Index => format!(
                "\n-- To {purpose}; no insert waits for its lock:\nSET lock_timeout = 0;\n{sql}\nSET lock_timeout = '1s';\n"
            ),
        });
    }
    script
}
