-- Lists the indexes of the outbox except for the pending one, and how much they are used.
-- $1: the quoted name of the outbox
-- $2: the name of the pending index
SELECT quote_ident(s.schemaname) || '.' || quote_ident(s.indexrelname), i.indisvalid AND i.indisready,
       coalesce(s.idx_scan, 0), i.indisunique OR i.indisreplident,
       coalesce(t.n_tup_ins, 0) + coalesce(t.n_tup_upd, 0), pg_relation_size(i.indexrelid)
FROM pg_stat_user_indexes AS s
JOIN pg_index AS i ON i.indexrelid = s.indexrelid
JOIN pg_stat_user_tables AS t ON t.relid = s.relid
WHERE s.relid = $1::text::regclass AND s.indexrelname <> $2::text
ORDER BY 1;
