-- Lists the connections of relays: those with their application name, and those that have locked lanes, because only relays run
-- SELECT FOR UPDATE on the lane table. Without pg_read_all_stats, a role can see only the name and process of other connections.
-- $1: the application name
-- $2: the quoted name of the lane table
SELECT a.pid, coalesce(a.application_name, ''), host(a.client_addr), a.state, a.wait_event_type, c.pid IS NOT NULL,
       (extract(epoch FROM clock_timestamp()) - extract(epoch FROM a.state_change))::float8,
       (extract(epoch FROM clock_timestamp()) - extract(epoch FROM a.xact_start))::float8
FROM pg_stat_activity AS a
LEFT JOIN (
    SELECT DISTINCT pid
    FROM pg_locks
    WHERE locktype = 'relation' AND mode = 'RowShareLock' AND relation = $2::text::regclass
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
) AS c ON c.pid = a.pid
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
  AND coalesce(a.backend_type, 'client backend') = 'client backend'
  AND (a.application_name = $1::text OR c.pid IS NOT NULL)
ORDER BY a.application_name, a.client_addr, a.pid
LIMIT 200;
