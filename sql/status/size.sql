-- Returns the size of the outbox, and when it was vacuumed.
-- $1: the quoted name of the outbox
SELECT pg_table_size(c.oid), pg_indexes_size(c.oid), greatest(c.reltuples, 0)::bigint,
       coalesce(s.n_dead_tup, 0), greatest(s.last_autovacuum, s.last_vacuum),
       pg_relation_size(c.oid) / current_setting('block_size')::bigint
FROM pg_class AS c
LEFT JOIN pg_stat_user_tables AS s ON s.relid = c.oid
WHERE c.oid = $1::text::regclass;
