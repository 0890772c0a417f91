-- Lists the transactions that may still commit a row.
--
-- An insert takes this lock on the table before it draws an id, and keeps it until its transaction ends, even a prepared one. A
-- writer may also draw the id in an earlier statement. nextval takes the same lock on the sequence before it draws, and keeps it
-- as long.
--
-- The transaction id is that of the top level, which is the lowest one of a transaction. pg_locks has its lower 32 bits. The upper
-- ones are those of the next transaction id, unless the difference is too large.
--
-- $1: the quoted name of the outbox
SELECT s.started, s.backend, w.virtualtransaction, w.xid
FROM (
    SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, pg_backend_pid(),
           pg_snapshot_xmax(pg_current_snapshot())::text::bigint
    OFFSET 0
) AS s(started, backend, next)
LEFT JOIN LATERAL (
    SELECT l.virtualtransaction,
           s.next - 2147483648 + min((l.transactionid::text::bigint - s.next + 2147483648) & 4294967295) AS xid
    FROM pg_locks l
    WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock'
       OR l.locktype = 'relation' AND l.mode = 'RowExclusiveLock'
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.relation = ANY (ARRAY(
          SELECT $1::text::regclass::oid
          UNION ALL
          SELECT d.objid
          FROM pg_attribute a
          JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = a.attrelid
                          AND d.refobjsubid = a.attnum AND d.classid = 'pg_class'::regclass
          JOIN pg_sequence q ON q.seqrelid = d.objid
          WHERE a.attrelid = $1::text::regclass AND a.attname = :'id'
          UNION ALL
          SELECT d.refobjid
          FROM pg_attribute a
          JOIN pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum
          JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
                          AND d.refclassid = 'pg_class'::regclass
          JOIN pg_sequence q ON q.seqrelid = d.refobjid
          WHERE a.attrelid = $1::text::regclass AND a.attname = :'id'))
    GROUP BY l.virtualtransaction
    HAVING bool_or(l.locktype = 'relation')
) AS w ON true;
