//! Finds what keeps vacuum from removing dead rows: transactions, prepared transactions and replication slots.

use crate::postgres::diagnose::status::seconds;
use std::time::Duration;
use tokio_postgres::Row;

/// The oldest holders, at most $1. Without pg_read_all_stats, a role can see the age of other roles' transactions only as a
/// number of transactions, not as a time.
pub(crate) const HOLDERS: &str = "
SELECT what, name, pid, application, transactions, seconds, active
FROM (
    SELECT 'transaction' AS what,
           concat_ws(' ', 'pid', pid, nullif(application_name, ''), state) AS name,
           pid, nullif(application_name, '') AS application,
           greatest(age(backend_xmin), age(backend_xid)) AS transactions,
           (extract(epoch FROM clock_timestamp()) - extract(epoch FROM xact_start))::float8 AS seconds,
           true AS active
    FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
      AND (datname = current_database() OR datname IS NULL)
    UNION ALL
    SELECT 'prepared transaction', gid, NULL, NULL, age(transaction),
           (extract(epoch FROM clock_timestamp()) - extract(epoch FROM prepared))::float8, true
    FROM pg_prepared_xacts
    WHERE database = current_database()
    UNION ALL
    SELECT 'replication slot', slot_name::text, active_pid, NULL, age(xmin), NULL, active
    FROM pg_replication_slots
    WHERE xmin IS NOT NULL
) AS held
ORDER BY transactions DESC, seconds DESC NULLS LAST
LIMIT $1::bigint";

/// A transaction or slot that keeps vacuum from removing dead rows.
#[derive(Clone, Debug)]
pub(crate) struct VacuumHolder {
    /// `transaction`, `prepared transaction` or `replication slot`.
    pub what: String,
    /// For a transaction, its process, application and state.
    pub name: String,
    /// The server process, if there is one.
    pub pid: Option<i32>,
    pub application: Option<String>,
    /// How many transactions have begun since.
    pub transactions: i32,
    /// `None` if the role cannot see it.
    pub age: Option<Duration>,
    /// False for a slot that is not in use.
    pub active: bool,
}

/// From a row of [`HOLDERS`].
pub(crate) fn holder(row: &Row) -> VacuumHolder {
    VacuumHolder {
        what: row.get(0),
        name: row.get(1),
        pid: row.get(2),
        application: row.get(3),
        transactions: row.get(4),
        age: seconds(row.get(5)),
        active: row.get(6),
    }
}
