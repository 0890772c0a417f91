//! Timeouts of the role, the database or the server that end what a relay leaves open.

use super::Asked;
use crate::doctor::Finding;
use crate::doctor::codes::{ROLE_TIMEOUT, UNIX_SOCKET};
use crate::postgres::table::quote_identifier;
use crate::relay::failure::Fault;
use std::time::Duration;

/// What holds when a session begins; the relay's own transactions set theirs over it. In milliseconds, 0 is never.
const TIMEOUTS: &str = "
SELECT name, reset_val::bigint
FROM pg_settings
WHERE name IN ('statement_timeout', 'transaction_timeout', 'idle_session_timeout',
               'idle_in_transaction_session_timeout')
ORDER BY name";

/// What one of these ends that the relay would not.
fn ends(name: &str) -> &'static str {
    match name {
        "idle_session_timeout" => "idle connections of the relay are closed and reopened",
        "transaction_timeout" => {
            "the scout, the reaper and topic probes are interrupted; claims set their own timeout"
        }
        "statement_timeout" => "the checks at start are interrupted; everything else sets its own timeout",
        _ => "the relay is not affected because it sets its own timeout; other sessions of this role are",
    }
}

/// Behind a pooler: the pooler's connection.
const OVER_SOCKET: &str = "SELECT inet_client_addr() IS NULL";

/// While the server is sending rows to a relay that is frozen, only `tcp_user_timeout` frees its lanes. Smaller slices would
/// not help: a single event may be larger than what the kernel buffers.
async fn over_socket(asked: &Asked<'_>) -> Result<Vec<Finding>, Fault> {
    let rows = asked.rows("reading the address of the client", OVER_SOCKET, &[]).await?;
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

pub(super) async fn findings(asked: &Asked<'_>) -> Result<Vec<Finding>, Fault> {
    let rows = asked.rows("reading timeouts", TIMEOUTS, &[]).await?;
    let longest = asked.config.relay.publish_timeout;
    let mut findings = over_socket(asked).await?;
    for row in &rows {
        let (name, milliseconds): (&str, i64) = (row.get(0), row.get(1));
        let timeout = Duration::from_millis(milliseconds.unsigned_abs());
        if milliseconds <= 0 || timeout >= longest {
            continue;
        }
        let role = quote_identifier(&asked.role.name);
        let database = quote_identifier(&asked.role.database);
        findings.push(ROLE_TIMEOUT.found(
            format!("role {}", asked.role.name),
            format!("{name} is {}: {}", humantime::format_duration(timeout), ends(name)),
            format!("ALTER ROLE {role} IN DATABASE {database} SET {name} = 0;"),
        ));
    }
    Ok(findings)
}
