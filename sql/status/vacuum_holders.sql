-- Lists what keeps vacuum from removing dead rows, the oldest first. Without pg_read_all_stats, a role can see the age of the
-- transactions of other roles only as a number of transactions, not as a time.
-- While a transaction that writes is open, it also determines the backend_xmin of every other session. Those of the same database
-- and those of standbys are left out, unless they hold back vacuum by themselves.
-- Vacuum ignores the transaction of a running VACUUM and of its parallel workers. Without pg_read_all_stats, the workers of another
-- role are not recognized. A standby without a slot has a WAL sender.
-- $1: the maximum number of holders
SELECT what, name, pid, application, transactions, seconds, active
FROM (
    SELECT CASE WHEN a.datname IS NULL AND a.pid IN (SELECT r.pid FROM pg_stat_replication r)
                THEN 'standby' ELSE 'transaction' END AS what,
           concat_ws(' ', 'pid', a.pid, nullif(a.application_name, ''), 'of', a.usename, '(' || a.state || ')')
               || CASE WHEN EXISTS (
                      SELECT FROM pg_locks l
                      WHERE l.pid = a.pid AND l.locktype = 'relation' AND l.mode = 'RowExclusiveLock'
                        AND l.database = a.datid AND l.relation = :'outbox'::regclass)
                  THEN ', which has written to the outbox' ELSE '' END AS name,
           a.pid, nullif(a.application_name, '') AS application,
           greatest(age(a.backend_xid), CASE WHEN w.xid IS NULL THEN age(a.backend_xmin) END) AS transactions,
           (extract(epoch FROM clock_timestamp()) - extract(epoch FROM a.xact_start))::float8 AS seconds,
           true AS active
    FROM pg_stat_activity a
    LEFT JOIN LATERAL (
        SELECT o.backend_xid AS xid FROM pg_stat_activity o
        WHERE o.backend_xid = a.backend_xmin AND o.pid <> a.pid AND o.datname = current_database()
        UNION ALL
        SELECT x.transaction FROM pg_prepared_xacts x WHERE x.transaction = a.backend_xmin AND x.database = current_database()
        LIMIT 1
    ) w ON true
    WHERE a.pid <> pg_backend_pid() AND (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL AND w.xid IS NULL)
      AND (a.datname = current_database() OR a.datname IS NULL)
      AND coalesce(a.leader_pid, a.pid) NOT IN (SELECT v.pid FROM pg_stat_progress_vacuum v)
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
LIMIT $1::bigint;
