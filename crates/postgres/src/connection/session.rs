//! How the relay's transactions begin, and their settings. All are SET LOCAL, so that a pooler may give each transaction
//! another connection.

use crate::connection::fault::STATEMENT_TIMEOUT;
use std::time::Duration;

/// The first statements of every transaction.
///
/// - The search path. Otherwise a role that may create functions or operators in a schema of the path could run code as this
///   role: an exact match in `public` is preferred to a match in `pg_catalog` that needs a cast.
/// - No JIT, because compiling a statement takes longer than running it. The penalty for a disabled path exceeds
///   `jit_above_cost`.
pub(crate) const FIRST: &str = "SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL jit = off";

/// The beginning of a script for psql or a migration tool. Outside of a transaction, SET LOCAL has no effect, and the block
/// sets the path for the session.
pub(crate) const FIXED_SEARCH_PATH: &str = "\
SET LOCAL search_path = pg_catalog, pg_temp;
DO $$ BEGIN
    IF pg_catalog.current_setting('search_path') OPERATOR(pg_catalog.<>) 'pg_catalog, pg_temp' THEN
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false);
    END IF;
END $$;

";

/// Begins a transaction. `access` is `READ ONLY` or `READ WRITE`.
///
/// A standby refuses READ WRITE. By then the transaction is open, so that the server also refuses the statements that were
/// sent after this one.
pub(crate) fn begin(access: &str, settings: &str) -> String {
    format!("BEGIN ISOLATION LEVEL READ COMMITTED; {FIRST}; SET TRANSACTION {access}; {settings}")
}

/// Where the server has this setting, a statement that names a view or a foreign table fails. So nothing that replaced a
/// table of the outbox after it was checked can run code.
pub(crate) const NO_VIEWS: &str = "SELECT set_config(name, 'view, foreign-table', true) FROM pg_settings \
                                   WHERE name = 'restrict_nonsystem_relation_kind'";

/// The same for a server that has the setting, without a query.
const NO_VIEWS_HERE: &str = "SET LOCAL restrict_nonsystem_relation_kind = 'view, foreign-table'; ";

/// What depends on the version of the server: no `transaction_timeout` of the role, and no views. Each version from 14 got the
/// latter in a minor release.
pub(crate) fn settings_since(server_version_num: u32) -> String {
    let has_kinds = matches!(server_version_num, 140_013..150_000 | 150_008..160_000 | 160_004.. );
    let kinds = if has_kinds { NO_VIEWS_HERE } else { "" };
    let timeout = if server_version_num >= 170_000 { NO_TRANSACTION_TIMEOUT } else { "" };
    format!("{timeout}{kinds}")
}

/// `format_type`, `quote_ident` and the like return what the checks compare. With this setting of the role or the database, it
/// would be quoted.
pub(crate) const PLAIN_NAMES: &str = "SET LOCAL quote_all_identifiers = off";

/// The settings of the checks of the schema.
pub fn check_settings() -> String {
    format!(
        "{PLAIN_NAMES}; SET LOCAL statement_timeout = {statement}; SET LOCAL lock_timeout = {lock}; {NO_VIEWS}",
        statement = STATEMENT_TIMEOUT.as_millis(),
        lock = OPERATOR_LOCK_TIMEOUT.as_millis(),
    )
}

/// How long to wait for another session's row lock. Then the settlement skips the locked rows.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The settings of every transaction.
///
/// - `enable_...`: The planner must use the pending index. It would choose a sequential scan on a small or freshly analyzed
///   table, and keep that plan while the table grows.
/// - `force_generic_plan`: Prepared statements are planned once, not at every execution (PostgreSQL manual, "PREPARE").
/// - `row_security = off`: A policy that hides rows causes an error.
/// - `synchronous_commit = off`: If the server loses a settlement, its rows are sent again with the same event IDs.
pub fn plain_settings() -> String {
    format!(
        "SET LOCAL statement_timeout = {statement}; SET LOCAL lock_timeout = {lock}; \
         SET LOCAL synchronous_commit = off; SET LOCAL row_security = off; \
         SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; \
         SET LOCAL plan_cache_mode = force_generic_plan",
        statement = STATEMENT_TIMEOUT.as_millis(),
        lock = LOCK_TIMEOUT.as_millis(),
    )
}

/// How long a relay that is frozen may keep the transaction of its looks open, whose lock makes a change of the table wait.
const LOOK_IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// The settings of looks for new rows.
pub(crate) fn look_settings() -> String {
    format!(
        "{plain}; SET LOCAL idle_in_transaction_session_timeout = {idle}",
        plain = plain_settings(),
        idle = LOOK_IDLE_TIMEOUT.as_millis(),
    )
}

/// How long the reaper waits for another session's lock. Then it skips the locked rows.
const REAPER_LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// The settings of the reaper, which finds rows by a range of pages.
pub fn reaper_settings() -> String {
    format!(
        "{plain}; SET LOCAL enable_tidscan = on; SET LOCAL lock_timeout = {lock}",
        plain = plain_settings(),
        lock = REAPER_LOCK_TIMEOUT.as_millis(),
    )
}

/// A `transaction_timeout` of the role or the database would close the connection of a slow sweep or a large batch, which
/// would look like an outage. Every statement of the relay has its own timeout.
const NO_TRANSACTION_TIMEOUT: &str = "SET LOCAL transaction_timeout = 0; ";

/// How long an operator's action waits for another session's row lock.
const OPERATOR_LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The settings of operator actions. They do not change `synchronous_commit`, because a confirmed action must not be lost.
pub(crate) fn operator_settings() -> String {
    format!(
        "SET LOCAL statement_timeout = {statement}; SET LOCAL lock_timeout = {lock}; SET LOCAL row_security = off; \
         SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; {NO_VIEWS}; {PLAIN_NAMES}",
        statement = STATEMENT_TIMEOUT.as_millis(),
        lock = OPERATOR_LOCK_TIMEOUT.as_millis(),
    )
}

/// The settings of a claim. The server ends the claim if the relay is frozen, dead or disconnected: the idle timeout applies
/// while the server waits for the relay, `tcp_user_timeout` while it sends rows (PostgreSQL manual, "Client Connection
/// Defaults" and "Connections and Authentication").
pub(crate) fn claim_settings(takeover_timeout: Duration, server_version_num: i32) -> String {
    // publish_timeout limits claims. A default of the role would end slow ones.
    let since = settings_since(server_version_num.unsigned_abs());
    format!(
        "{since}SET LOCAL idle_in_transaction_session_timeout = {takeover}; SET LOCAL tcp_user_timeout = {takeover}; {plain}",
        takeover = takeover_timeout.as_millis(),
        plain = plain_settings(),
    )
}
