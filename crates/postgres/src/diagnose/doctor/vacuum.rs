//! Checks the settings of autovacuum, and finds what holds vacuum back.

use super::Context;
use crate::diagnose::holders::{HOLDERS, VacuumHolder, holder};
use crate::table::quote_literal;
use relay::failure::PostgresFault;
use settings::doctor::Finding;
use settings::doctor::codes::{
    AUTOVACUUM_LATE, AUTOVACUUM_OFF, LONG_TRANSACTION, PREPARED_TRANSACTION, REPLICATION_SLOT, WRAPAROUND,
};
use settings::text::span;
use std::time::Duration;
use tokio_postgres::types::Type;

const DOING: &str = "checking vacuum";

/// Settings of the table override those of the server.
const SETTINGS: &str = "
SELECT current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean,
       coalesce((SELECT option_value FROM pg_options_to_table(c.reloptions)
                 WHERE option_name = 'autovacuum_enabled')::boolean, true),
       coalesce((SELECT option_value FROM pg_options_to_table(c.reloptions)
                 WHERE option_name = 'autovacuum_vacuum_threshold'),
                current_setting('autovacuum_vacuum_threshold'))::float8,
       coalesce((SELECT option_value FROM pg_options_to_table(c.reloptions)
                 WHERE option_name = 'autovacuum_vacuum_scale_factor'),
                current_setting('autovacuum_vacuum_scale_factor'))::float8,
       greatest(c.reltuples, 0)::float8,
       greatest(age(c.relfrozenxid), age((SELECT datfrozenxid FROM pg_database WHERE datname = current_database())))
FROM pg_class AS c
WHERE c.oid = $1::text::regclass";

/// Vacuum must start before there are this many dead rows, or this share of the table, whichever is more.
const DEAD_ROWS_MAX: f64 = 1_000_000.0;
const DEAD_SHARE_MAX: f64 = 0.05;
/// Half of what PostgreSQL tolerates. By default, autovacuum freezes at a fifth of it.
const AGE_MAX: i32 = 1_000_000_000;

fn wraparound(place: &str, age: i32) -> Option<Finding> {
    let remedy = "end what holds vacuum back (see the other findings), then run VACUUM (FREEZE) in each database whose \
                  age(datfrozenxid) is high";
    let problem = format!("the oldest transaction that is not frozen is {age} transactions old");
    (age > AGE_MAX).then(|| WRAPAROUND.found(place, problem, remedy))
}

pub(super) async fn autovacuum(context: &Context<'_>) -> Result<Vec<Finding>, PostgresFault> {
    let Some(row) = context.of_table(DOING, SETTINGS).await? else { return Ok(Vec::new()) };
    let (server, of_table): (bool, bool) = (row.get(0), row.get(1));
    let (threshold, scale, rows): (f64, f64, f64) = (row.get(2), row.get(3), row.get(4));
    let (place, outbox) = (context.table.to_string(), context.table.quoted());
    let mut findings = Vec::new();
    if !server {
        findings.push(AUTOVACUUM_OFF.found(
            "the server",
            "autovacuum, or track_counts, is off for all tables",
            "ALTER SYSTEM SET autovacuum = on; ALTER SYSTEM SET track_counts = on; SELECT pg_reload_conf();",
        ));
    }
    if !of_table {
        let remedy = format!("ALTER TABLE {outbox} RESET (autovacuum_enabled);");
        findings.push(AUTOVACUUM_OFF.found(&place, "autovacuum is off for this table", remedy));
    }
    findings.extend(wraparound(&place, row.get(5)));
    let due = threshold + scale * rows;
    if due > DEAD_ROWS_MAX.max(DEAD_SHARE_MAX * rows) {
        let problem = format!("vacuum starts after {due:.0} dead rows, in a table of about {rows:.0} rows");
        let remedy = format!(
            "ALTER TABLE {outbox} SET (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.01, \
             autovacuum_vacuum_insert_scale_factor = 0.05);"
        );
        findings.push(AUTOVACUUM_LATE.found(&place, problem, remedy));
    }
    Ok(findings)
}

/// Holders that are older than this time or this number of transactions are findings.
const HELD_MAX: Duration = Duration::from_secs(300);
const TRANSACTIONS_MAX: i32 = 50_000;
const HOLDERS_SHOWN: i64 = 10;

pub(super) async fn holders(context: &Context<'_>) -> Result<Vec<Finding>, PostgresFault> {
    let rows = context.rows(DOING, HOLDERS, &[(&HOLDERS_SHOWN, Type::INT8)]).await?;
    let holders = rows.iter().map(holder);
    let long = |held: &VacuumHolder| {
        held.transactions >= TRANSACTIONS_MAX || held.age.is_some_and(|age| age >= HELD_MAX)
    };
    Ok(holders.filter(long).map(|held| finding(&held)).collect())
}

fn finding(held: &VacuumHolder) -> Finding {
    let age = held.age.map(|age| format!("open for {}; ", span(age))).unwrap_or_default();
    let problem =
        format!("{age}transactions begun since it started to hold back vacuum: {}", held.transactions);
    let place = format!("{} {}", held.what, held.name);
    match (held.what.as_str(), held.pid) {
        ("prepared transaction", _) => {
            let id = quote_literal(&held.name);
            let remedy = format!("ROLLBACK PREPARED {id}; (or COMMIT PREPARED, to keep its changes)");
            PREPARED_TRANSACTION.found(place, problem, remedy)
        }
        ("replication slot", _) if held.active => {
            let remedy = "check the standby that uses it, or set hot_standby_feedback = off there";
            REPLICATION_SLOT.found(place, problem, remedy)
        }
        ("replication slot", _) => {
            let remedy = format!("SELECT pg_drop_replication_slot({});", quote_literal(&held.name));
            REPLICATION_SLOT.found(place, format!("{problem}; the slot is not in use"), remedy)
        }
        (_, pid) => {
            let pid = pid.unwrap_or_default();
            LONG_TRANSACTION.found(place, problem, format!("SELECT pg_terminate_backend({pid});"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_is_reported_long_before_the_server_stops() {
        assert!(wraparound("app.outbox", AGE_MAX).is_none());
        let finding = wraparound("app.outbox", AGE_MAX + 1).unwrap();
        assert_eq!(finding.code.word, "wraparound");
    }
}
