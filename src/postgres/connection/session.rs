//! The settings of every transaction of the relay. All are SET LOCAL: nothing outlives the transaction, so a pooler
//! may give each transaction another connection.

use crate::postgres::connection::fault::STATEMENT_TIMEOUT;
use std::time::Duration;

/// Waits for somebody else's row lock no longer than this; then the settlement goes round the locked rows.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// What every statement of the relay runs under.
///
/// - The planner is pinned to the pending index. With `lane = constant` it drops that sort key, takes a sequential
///   scan on a small or freshly analysed table, and the cached plan stays while the table grows.
/// - A prepared statement is planned once (`force_generic_plan`), instead of anew for each claim as long as the server
///   estimates that this pays (PostgreSQL manual, "PREPARE").
/// - `row_security = off` makes hiding rows an error.
/// - `synchronous_commit = off`: losing a settlement only sends its rows again, recognisably.
pub fn plain_settings() -> String {
    format!(
        "SET LOCAL statement_timeout = {statement}; SET LOCAL lock_timeout = {lock}; \
         SET LOCAL synchronous_commit = off; SET LOCAL row_security = off; SET LOCAL jit = off; \
         SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; \
         SET LOCAL plan_cache_mode = force_generic_plan",
        statement = STATEMENT_TIMEOUT.as_millis(),
        lock = LOCK_TIMEOUT.as_millis(),
    )
}

/// How long the reaper waits for a row or table lock of another session before it deletes around the locked rows.
const REAPER_LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// What the reaper's statement runs under in addition: rows are found by the range of pages in which they lie.
pub fn reaper_settings() -> String {
    format!(
        "{plain}; SET LOCAL enable_tidscan = on; SET LOCAL lock_timeout = {lock}",
        plain = plain_settings(),
        lock = REAPER_LOCK_TIMEOUT.as_millis(),
    )
}

/// A `transaction_timeout` of the role or the database would end a slow sweep or a large batch, and the connection with
/// it, which would look like an outage. Every statement of the relay has its own limit. Only PostgreSQL 17 and newer
/// know the setting.
pub(crate) const NO_TRANSACTION_TIMEOUT: &str = "SET LOCAL transaction_timeout = 0; ";
/// The first version that knows `transaction_timeout`.
pub(crate) const TRANSACTION_TIMEOUT_SINCE: u32 = 17;

/// An operator's act waits for somebody else's row lock no longer than this: nobody waits for the act.
const OPERATOR_LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// What the acts of an operator run under. Their COMMIT is as durable as the role's others: what a person was told is
/// done must not be lost.
pub(crate) fn operator_settings() -> String {
    format!(
        "SET LOCAL statement_timeout = {statement}; SET LOCAL lock_timeout = {lock}; SET LOCAL row_security = off; \
         SET LOCAL jit = off; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off",
        statement = STATEMENT_TIMEOUT.as_millis(),
        lock = OPERATOR_LOCK_TIMEOUT.as_millis(),
    )
}

/// What a claim runs under beside that: the server ends it when the relay is frozen, gone or cut off. The idle timeout
/// counts while the server waits for the relay, `tcp_user_timeout` while it is sending rows to it (PostgreSQL manual,
/// "Client Connection Defaults" and "Connections and Authentication").
pub(crate) fn claim_settings(takeover_timeout: Duration, server_version_num: i32) -> String {
    // A role's default would end slow claims; they are bounded by publish_timeout.
    let unbounded = if server_version_num >= 170_000 { "SET LOCAL transaction_timeout = 0; " } else { "" };
    format!(
        "{unbounded}SET LOCAL idle_in_transaction_session_timeout = {takeover}; SET LOCAL tcp_user_timeout = {takeover}; {plain}",
        takeover = takeover_timeout.as_millis(),
        plain = plain_settings(),
    )
}
