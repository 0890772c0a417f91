//! The relay's role and connection: privileges that the role does not need, and those of other roles on the outbox; clocks,
//! encryption, poolers, timeouts.

use super::{Checked, Context};
use crate::access::grants::relay_grants;
use crate::columns::Column;
use crate::connection::pool;
use crate::options::{Connection, TlsMode};
use crate::schema::relations::RELATIONS;
use crate::sql::sql;
use crate::table::{MODULE_NAMES, quote_identifier};
use relay::failure::{FaultKind, PostgresFault};
use settings::codes;
use settings::text::span;
use std::time::{Duration, SystemTime};
use tokio_postgres::Row;

codes! {
    ROLE_SUPERUSER = Warning, "role-superuser",
        "anyone with the relay's password controls the whole server";
    ROLE_ATTRIBUTES = Warning, "role-attributes",
        "the role may create roles or databases, or read the write-ahead log, which the relay does not need";
    ROLE_OWNER = Warning, "role-owner",
        "the role owns the outbox, so it may change and drop it regardless of grants";
    EVENTS_CHANGEABLE = Warning, "events-changeable",
        "the role may change events of the application, but the relay only needs to set sent_at";
    OTHER_TABLES = Warning, "other-tables",
        "the role may use tables that do not belong to the outbox";
    OUTBOX_PRIVILEGES = Warning, "outbox-privileges",
        "a role has privileges on a table or sequence of the outbox that no printed role has: it can run code as roles that use \
         the table, empty it, change what was recorded, or prevent further records";
    SCHEMA_CREATE = Warning, "schema-create",
        "a role that may create tables and functions in this schema can trick other roles into running its code; the relay and \
         its commands set a search path of their own and check their tables, but other programs may not";
    ROLE_TIMEOUT = Note, "role-timeout",
        "idle_session_timeout closes idle connections of the relay; other timeouts affect only other sessions of the role, \
         because the relay sets its own";
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
pub(super) async fn clock(context: &Context<'_>) -> Checked {
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
pub(super) async fn encryption(context: &Context<'_>) -> Checked {
    let connection: Option<Connection> = context.settings.postgres.connection().ok();
    let remote = connection.filter(|connection| !connection.is_local());
    // The mode of a connection to a remote server that is not verified.
    let mode = remote.map(|connection| connection.tls.mode).filter(|mode| *mode != TlsMode::VerifyFull);
    let Some(mode) = mode else { return Ok(Vec::new()) };
    let encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let rows = context.rows("checking TLS", encrypted, &[]).await?;
    let encrypted = rows.first().is_some_and(|row| row.get(0));
    let (place, remedy) = ("[postgres] sslmode", "set sslmode = \"verify-full\", and sslrootcert");
    let name = mode.name();
    let (code, what) = match mode {
        TlsMode::Disable | TlsMode::Prefer if !encrypted => {
            (&TLS_OFF, "the connection to a remote host is not encrypted")
        }
        _ => (&TLS_UNVERIFIED, "the host is remote"),
    };
    Ok(vec![code.found(place, format!("sslmode is {name}, and {what}"), remedy)])
}

/// Finds a pooler in transaction mode, and whether it keeps prepared statements.
pub(super) async fn pooler(context: &Context<'_>) -> Checked {
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

/// Finds a Unix socket, to which `tcp_user_timeout` does not apply. Behind a pooler, this is about the pooler's connection.
///
/// While the server sends rows to a frozen relay, only `tcp_user_timeout` frees its lanes. Smaller slices would not help,
/// because a single event can be larger than the kernel's buffers.
pub(super) async fn over_socket(context: &Context<'_>) -> Checked {
    let address = "SELECT inet_client_addr() IS NULL";
    let rows = context.rows("reading the address of the client", address, &[]).await?;
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

/// Finds short timeouts of the role, the database or the server.
pub(super) async fn timeouts(context: &Context<'_>) -> Checked {
    let rows = context.rows("reading timeouts", sql!("doctor/timeouts"), &[]).await?;
    let longest = context.settings.publish_timeout;
    let role = quote_identifier(&context.role.name);
    let database = quote_identifier(&context.role.database);
    let mut findings = Vec::new();
    for row in &rows {
        let (name, milliseconds): (&str, i64) = (row.get(0), row.get(1));
        let timeout = Duration::from_millis(milliseconds.unsigned_abs());
        if milliseconds <= 0 || timeout >= longest {
            continue;
        }
        let effect = match name {
            "idle_session_timeout" => "idle connections of the relay are closed and reopened",
            _ => "the relay is not affected because it sets its own timeout; other sessions of this role are",
        };
        findings.push(ROLE_TIMEOUT.found(
            format!("role {}", context.role.name),
            format!("{name} is {}: {effect}", span(timeout)),
            format!("ALTER ROLE {role} IN DATABASE {database} SET {name} = 0;"),
        ));
    }
    Ok(findings)
}

/// The maximum number of tables that the finding names.
const OTHERS_NAMED: usize = 3;

const PRIVILEGES: &str = "reading the role's privileges";

fn own_tables(context: &Context<'_>) -> Vec<String> {
    RELATIONS.iter().chain(&["{setting}"]).map(|relation| context.table.name_of(relation)).collect()
}

/// Finds roles that may create objects in the schema of the outbox.
pub(super) async fn schema_creators(context: &Context<'_>) -> Checked {
    let params = params![context.table.schema() => TEXT, context.table.table() => TEXT];
    let rows = context.rows(PRIVILEGES, sql!("doctor/schema_creators"), &params).await?;
    let finding = |row: &Row| {
        let (schema, role, owns): (&str, &str, bool) = (row.get(0), row.get(1), row.get(2));
        let (problem, remedy) = if owns {
            (
                format!(
                    "{role} owns it, or the database, and may replace the tables of the outbox, and so gain the rights of the role \
                     that ran `migrate`, whose functions use these tables"
                ),
                format!(
                    "ALTER SCHEMA {schema} OWNER TO CURRENT_USER; or move the outbox to a schema of its own, unless {role} \
                     should have the rights of the outbox's owner"
                ),
            )
        } else {
            (
                format!("{role} may create objects in it"),
                format!("REVOKE CREATE ON SCHEMA {schema} FROM {role};"),
            )
        };
        SCHEMA_CREATE.found(format!("schema {schema}"), problem, remedy)
    };
    Ok(rows.iter().map(finding).collect())
}

/// Finds privileges on the tables of the outbox that no role needs.
pub(super) async fn unneeded_privileges(context: &Context<'_>) -> Checked {
    let records = ["{act}", "{migration}"].map(|name| context.table.name_of(name)).to_vec();
    let params = params![
        context.table.schema() => TEXT, own_tables(context) => TEXT_ARRAY, records => TEXT_ARRAY
    ];
    let rows = context.rows(PRIVILEGES, sql!("doctor/unneeded_privileges"), &params).await?;
    let finding = |row: &Row| {
        let (role, privileges, tables): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
        let remedy = format!(
            "REVOKE ALL ON {tables} FROM {role}; then run the statements of `outbox-relay migrate --print-roles` again. \
             ALTER DEFAULT PRIVILEGES may have granted them"
        );
        OUTBOX_PRIVILEGES.found(
            format!("role {role}"),
            format!("{role} has privileges on {privileges}"),
            remedy,
        )
    };
    Ok(rows.iter().map(finding).collect())
}

/// Finds what the role may do in the whole server.
pub(super) async fn role_attributes(context: &Context<'_>) -> Checked {
    let place = format!("role {}", context.role.name);
    if context.role.is_superuser {
        let remedy = "connect as the relay's own role. If there is none, create it with the SQL from `outbox-relay migrate \
                      --print-roles --config FILE`";
        return Ok(vec![ROLE_SUPERUSER.found(place, "the role is a superuser", remedy)]);
    }
    let rows = context.rows(PRIVILEGES, sql!("doctor/role_attributes"), &[]).await?;
    let attributes: &str = rows.first().map_or("", |row| row.get(0));
    if attributes.is_empty() {
        return Ok(Vec::new());
    }
    let has = attributes.replace("NO", "").replace(' ', ", ");
    let remedy = format!("ALTER ROLE {} {attributes};", quote_identifier(&context.role.name));
    Ok(vec![ROLE_ATTRIBUTES.found(place, format!("the role has {has}"), remedy)])
}

/// Finds privileges of the role on the outbox itself.
pub(super) async fn role_on_outbox(context: &Context<'_>) -> Checked {
    let sent_at = context.table.columns().name(Column::SentAt);
    let params = params![context.table.quoted() => TEXT, sent_at => TEXT];
    let rows = context.rows(PRIVILEGES, sql!("doctor/role_on_outbox"), &params).await?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let (owns, changeable): (bool, Option<&str>) = (row.get(0), row.get(1));
    let (name, role, outbox) =
        (&context.role.name, quote_identifier(&context.role.name), context.table.quoted());
    if owns {
        let grants = relay_grants(context.table, name).replace('\n', " ");
        let remedy = format!("ALTER TABLE {outbox} OWNER TO CURRENT_USER; {}", grants.trim_end());
        let problem = format!("role {name} owns the outbox, or has the privileges of its owner");
        return Ok(vec![ROLE_OWNER.found(context.table, problem, remedy)]);
    }
    let Some(columns) = changeable else { return Ok(Vec::new()) };
    let sent_at = context.table.column(Column::SentAt);
    let remedy =
        format!("REVOKE UPDATE ON {outbox} FROM {role}; GRANT UPDATE ({sent_at}) ON {outbox} TO {role};");
    let problem = format!("role {name} may change {columns}");
    Ok(vec![EVENTS_CHANGEABLE.found(context.table, problem, remedy)])
}

/// Finds tables that do not belong to the outbox and that the role may use.
pub(super) async fn other_tables(context: &Context<'_>) -> Checked {
    let mut own = own_tables(context);
    own.extend(MODULE_NAMES.split(' ').map(str::to_owned));
    let most = OTHERS_NAMED as i64 + 1;
    let params = params![context.table.schema() => TEXT, own => TEXT_ARRAY, most => INT8];
    let rows = context.rows(PRIVILEGES, sql!("doctor/other_tables"), &params).await?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let role = quote_identifier(&context.role.name);
    let named = &rows[..rows.len().min(OTHERS_NAMED)];
    let tables: Vec<&str> = named.iter().map(|row| row.get(0)).collect();
    let mut remedies: Vec<String> = Vec::new();
    for row in named {
        let (table, by): (&str, Option<&str>) = (row.get(0), row.get(1));
        let remedy = match by {
            Some("PUBLIC") => format!("REVOKE ALL ON {table} FROM PUBLIC;"),
            Some(group) => format!("REVOKE {group} FROM {role};"),
            None => format!("REVOKE ALL ON {table} FROM {role};"),
        };
        if !remedies.contains(&remedy) {
            remedies.push(remedy);
        }
    }
    let more = if rows.len() > named.len() { " and more" } else { "" };
    let problem = format!("role {} may use {}{more}", context.role.name, tables.join(", "));
    Ok(vec![OTHER_TABLES.found(format!("role {}", context.role.name), problem, remedies.join(" "))])
}
