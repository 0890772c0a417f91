-- Lists the indexes of the outbox, and how much they are used. Omits valid indexes of unsent rows by lane and ID, because the pending
-- index may have any name, and indexes that are being built. If another role builds one, its name is hidden, so invalid ones are omitted.
-- $1: the quoted name of the outbox
-- $2: the column that shows whether a row is sent
-- $3: the column of the IDs
SELECT quote_ident(s.schemaname) || '.' || quote_ident(s.indexrelname), i.indisvalid AND i.indisready,
       coalesce(s.idx_scan, 0), i.indisunique OR i.indisreplident,
       coalesce(t.n_tup_ins, 0) + coalesce(t.n_tup_upd, 0), pg_relation_size(i.indexrelid)
FROM pg_stat_user_indexes AS s
JOIN pg_index AS i ON i.indexrelid = s.indexrelid
JOIN pg_stat_user_tables AS t ON t.relid = s.relid
WHERE s.relid = $1::text::regclass
  AND (i.indisvalid OR NOT EXISTS (
      SELECT FROM pg_stat_progress_create_index AS p
      WHERE p.datname = current_database() AND coalesce(p.relid, s.relid) = s.relid
        AND coalesce(p.index_relid, s.indexrelid) IN (0, s.indexrelid)))
  AND NOT (i.indisvalid AND i.indisready
           AND coalesce(pg_get_expr(i.indpred, i.indrelid, false) = format('(%I IS NULL)', $2::text)
                        AND pg_get_indexdef(i.indexrelid, 1, false) LIKE '((hashtext(%) & 63))'
                        AND pg_get_indexdef(i.indexrelid, 2, false) = quote_ident($3::text), false))
ORDER BY 1;
