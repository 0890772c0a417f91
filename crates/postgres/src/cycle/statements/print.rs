//! The statements as a script for psql, to run EXPLAIN on them.

use super::Statements;
use crate::connection::session::{FIRST, plain_settings, reaper_settings};
use crate::options::OnSent;

/// Every statement of a running relay as `PREPARE`, with its purpose and parameters in a comment.
pub fn print(statements: &Statements) -> String {
    let on_sent = match statements.on_sent {
        OnSent::Mark => "mark",
        OnSent::Delete => "delete",
    };
    let mut script = format!(
        "\
-- The statements that the relay runs on {table}, with on_sent = \"{on_sent}\", topic = \"{template}\" and a payload
-- column of type {payload}.
--
-- Load this file with \\i in psql. Then run EXPLAIN under the settings of the relay's transactions, for example:
--
--   BEGIN;
--   {FIRST};
--   {settings};
--   EXPLAIN EXECUTE scan ('{{0, 1}}', '{{0, 0}}', 0, '{{}}', 0);
--   ROLLBACK;
--
-- EXPLAIN without ANALYZE runs nothing. The statements reap and reap_around_locks run under these settings instead:
--
--   {reaper};
SET search_path = pg_catalog, pg_temp;
",
        table = statements.table,
        template = statements.topics.template,
        payload = statements.payload,
        settings = wrapped(&plain_settings()),
        reaper = wrapped(&reaper_settings()),
    );
    for query in statements.all() {
        script.push('\n');
        script.push_str(&query.to_string());
    }
    script
}

fn wrapped(settings: &str) -> String {
    settings.replace("; ", ";\n--   ")
}
