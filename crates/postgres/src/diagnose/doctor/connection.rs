//! The connection of the relay: clocks, encryption, poolers, timeouts.

use super::{Check, Context, no_params};
use crate::connection::pool;
use crate::options::{Connection, TlsMode};
use crate::sql::sql;
use crate::table::quote_identifier;
use relay::failure::{FaultKind, PostgresFault};
use settings::codes;
use settings::doctor::Finding;
use settings::text::span;
use std::time::{Duration, SystemTime};
use tokio_postgres::Row;

codes! {
    ROLE_TIMEOUT = Note, "role-timeout",
        "a timeout set for the role or the server can end the relay's connections and checks; claims are not affected because \
         they set their own timeouts";
    POOLER = Note, "pooler",
        "a pooler assigns server connections per transaction; its timeouts can end a claim and cannot be checked from here";
    POOLER_PREPARED_STATEMENTS = Error, "pooler-prepared-statements",
        "the pooler does not keep prepared statements between transactions, but the relay uses them";
    TLS_OFF = Warning, "tls-off",
        "events, and possibly the password, are sent to PostgreSQL unencrypted";
    TLS_UNVERIFIED = Warning, "tls-unverified",
        "the connection to PostgreSQL is encrypted, but the server's identity is not verified";
    UNIX_SOCKET = Note, "unix-socket",
        "on a Unix socket, the server does not notice a relay that freezes while it receives a large result; the relay keeps \
         its lanes until it resumes or is killed";
    CLOCK_SKEW = Warning, "clock-skew",
        "the clocks of this machine and of PostgreSQL differ, so times in logs, rows and records cannot be compared";
}

/// Machines without time synchronization soon differ by more than this number of seconds.
const SKEW_MAX: f64 = 2.0;

/// Compares the clocks of this machine and of the server.
pub(super) async fn clock(context: &Context<'_>) -> Result<Vec<Finding>, PostgresFault> {
    let before = epoch();
    let rows = context
        .rows("reading the server's clock", "SELECT extract(epoch FROM clock_timestamp())::float8", &[])
        .await?;
    let after = epoch();
    let server: f64 = rows.first().map_or(before, |row| row.get(0));
    // The server read its clock between the two times.
    let skew = if server < before { server - before } else { (server - after).max(0.0) };
    if skew.abs() <= SKEW_MAX {
        return Ok(Vec::new());
    }
    let direction = if skew > 0.0 { "ahead of" } else { "behind" };
    let by = span(Duration::from_secs_f64(skew.abs()));
    let problem = format!("the clock of PostgreSQL is {by} {direction} the clock of this machine");
    let remedy = "check `timedatectl` or `chronyc tracking` on both machines, and synchronize them with NTP";
    Ok(vec![CLOCK_SKEW.found("PostgreSQL and this machine", problem, remedy)])
}

fn epoch() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// Checks that the connection is encrypted and that the server is verified. Behind a pooler, this is about the pooler's
/// connection.
pub(super) const TLS: Check = Check {
    needs: |context| unverified(context).is_some(),
    ..Check::new("TLS", "checking TLS", ENCRYPTED, no_params, encryption)
};

const ENCRYPTED: &str = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";

/// The mode of a connection to a remote server that is not verified.
fn unverified(context: &Context<'_>) -> Option<TlsMode> {
    let connection: Connection = context.settings.postgres.connection().ok()?;
    let mode = connection.tls.mode;
    (!connection.is_local() && mode != TlsMode::VerifyFull).then_some(mode)
}

fn encryption(context: &Context<'_>, rows: &[Row]) -> Vec<Finding> {
    let Some(mode) = unverified(context) else { return Vec::new() };
    let encrypted = rows.first().is_some_and(|row| row.get(0));
    let (place, remedy) = ("[postgres] sslmode", "set sslmode = \"verify-full\", and sslrootcert");
    let name = mode.name();
    let finding = match mode {
        TlsMode::Disable | TlsMode::Prefer if !encrypted => {
            let problem = format!("sslmode is {name}, and the connection to a remote host is not encrypted");
            TLS_OFF.found(place, problem, remedy)
        }
        _ => {
            let problem = format!("sslmode is {name}, and the host is remote");
            TLS_UNVERIFIED.found(place, problem, remedy)
        }
    };
    vec![finding]
}

/// Finds a pooler in transaction mode, and whether it keeps prepared statements.
pub(super) async fn pooler(context: &Context<'_>) -> Result<Vec<Finding>, PostgresFault> {
    // A second connection may not be available. If the server is unavailable, the next check reports that.
    let refused = |fault: PostgresFault| PostgresFault { kind: FaultKind::Refused, ..fault };
    if !pool::has_transaction_pooler(context.database).await.map_err(refused)? {
        return Ok(Vec::new());
    }
    let timeout = humantime::format_duration(context.settings.publish_timeout);
    let remedy = format!(
        "in PgBouncer's configuration, set idle_transaction_timeout, query_timeout and transaction_timeout to 0, or \
         to more than [relay] publish_timeout = {timeout}"
    );
    let problem = "transactions use different server connections";
    let mut findings = vec![POOLER.found("[postgres] url", problem, remedy)];
    if context.settings.postgres.prepared_statements
        && !pool::keeps_prepared_statements(context.database).await.map_err(refused)?
    {
        findings.push(POOLER_PREPARED_STATEMENTS.found(
            "[postgres] prepared_statements",
            "a prepared statement does not exist in the next transaction",
            "set [postgres] prepared_statements = false, or set max_prepared_statements in PgBouncer 1.21 or later",
        ));
    }
    Ok(findings)
}

/// Finds timeouts of the role, the database or the server that interrupt the relay, and a Unix socket, to which
/// `tcp_user_timeout` does not apply. Behind a pooler, the latter is about the pooler's connection.
pub(super) const TIMEOUTS: [Check; 2] = [
    Check::new(
        "timeouts",
        "reading the address of the client",
        "SELECT inet_client_addr() IS NULL",
        no_params,
        over_socket,
    ),
    Check::new("timeouts", "reading timeouts", sql!("doctor/timeouts"), no_params, timeouts),
];

/// While the server sends rows to a frozen relay, only `tcp_user_timeout` frees its lanes. Smaller slices would not help,
/// because a single event can be larger than the kernel's buffers.
fn over_socket(_: &Context<'_>, rows: &[Row]) -> Vec<Finding> {
    if !rows.first().is_some_and(|row| row.get(0)) {
        return Vec::new();
    }
    vec![UNIX_SOCKET.found(
        "[postgres] url",
        "the connection uses a Unix socket, where tcp_user_timeout has no effect",
        "connect over TCP, for example with host=127.0.0.1, or use a watchdog that kills a frozen relay, such as \
         WatchdogSec in the systemd unit",
    )]
}

fn timeouts(context: &Context<'_>, rows: &[Row]) -> Vec<Finding> {
    let longest = context.settings.publish_timeout;
    let role = quote_identifier(&context.role.name);
    let database = quote_identifier(&context.role.database);
    let mut findings = Vec::new();
    for row in rows {
        let (name, milliseconds): (&str, i64) = (row.get(0), row.get(1));
        let timeout = Duration::from_millis(milliseconds.unsigned_abs());
        if milliseconds <= 0 || timeout >= longest {
            continue;
        }
        findings.push(ROLE_TIMEOUT.found(
            format!("role {}", context.role.name),
            format!("{name} is {}: {}", span(timeout), ends(name)),
            format!("ALTER ROLE {role} IN DATABASE {database} SET {name} = 0;"),
        ));
    }
    findings
}

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
