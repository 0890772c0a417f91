-- The version of the set of holds, blocked keys and pauses, and the epoch of the marks. The epoch changes when a hold, block or
-- pause ends, and when the table gets another file: by TRUNCATE, a rewrite, or another table of the same name. OFFSET 0 makes
-- the server compute it once.
(
    SELECT version, (removals << 32) | pg_relation_filenode(:'outbox'::regclass)::bigint AS epoch
    FROM :hold_version WHERE singleton OFFSET 0
) v
