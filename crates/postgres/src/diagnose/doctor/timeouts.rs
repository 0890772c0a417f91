//! Finds timeouts of the role, the database or the server that interrupt the relay.

use super::Context;
use crate::table::quote_identifier;
use relay::failure::PostgresFault;
use settings::doctor::Finding;
use settings::doctor::codes::{ROLE_TIMEOUT, UNIX_SOCKET};
use settings::text::span;
use std::time::Duration;

/// The values at the start of a session, in milliseconds, where 0 means no timeout. The relay's transactions override them.
const TIMEOUTS: &str = "
SELECT name, reset_val::bigint
FROM pg_settings
WHERE name IN ('statement_timeout', 'transaction_timeout', 'idle_session_timeout',
               'idle_in_transaction_session_timeout')
ORDER BY name";

/// The effect of a timeout on the relay.
fn ends(name: &str) -> &'static str {
    match name {
        "idle_session_timeout" => "idle connections of the relay are closed and reopened",
        "transaction_timeout" => {
            "the scout, the reaper and topic probes are interrupted; claims set their own timeout"
        }
        "statement_timeout" => "the wait for new events is interrupted; everything else sets its own timeout",
        _ => "the relay is not affected because it sets its own timeout; other sessions of this role are",
    }
}

/// Behind a pooler, this is about the pooler's connection.
const OVER_SOCKET: &str = "SELECT inet_client_addr() IS NULL";

/// While the server sends rows to a frozen relay, only `tcp_user_timeout` frees its lanes. Smaller slices would not help,
/// because a single event can be larger than the kernel's buffers.
async fn over_socket(context: &Context<'_>) -> Result<Vec<Finding>, PostgresFault> {
    let rows = context.rows("reading the address of the client", OVER_SOCKET, &[]).await?;
    if !rows.first().is_some_and(|row| row.get(0)) {
        return Ok(Vec::new());
    }
    Ok(vec![UNIX_SOCKET.found(
        "[postgres] url",
        "the connection uses a Unix socket, where tcp_user_timeout has no effect",
        "connect over TCP, for example with host=127.0.0.1, or use a watchdog that kills a frozen relay, such as \
         WatchdogSec in the systemd unit",
    )])
}

pub(super) async fn findings(context: &Context<'_>) -> Result<Vec<Finding>, PostgresFault> {
    let rows = context.rows("reading timeouts", TIMEOUTS, &[]).await?;
    let longest = context.settings.publish_timeout;
    let mut findings = over_socket(context).await?;
    for row in &rows {
        let (name, milliseconds): (&str, i64) = (row.get(0), row.get(1));
        let timeout = Duration::from_millis(milliseconds.unsigned_abs());
        if milliseconds <= 0 || timeout >= longest {
            continue;
        }
        let role = quote_identifier(&context.role.name);
        let database = quote_identifier(&context.role.database);
        findings.push(ROLE_TIMEOUT.found(
            format!("role {}", context.role.name),
            format!("{name} is {}: {}", span(timeout), ends(name)),
            format!("ALTER ROLE {role} IN DATABASE {database} SET {name} = 0;"),
        ));
    }
    Ok(findings)
}
