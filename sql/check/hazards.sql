-- Child tables, rules and nondeterministic collations of the outbox, and publications that do not fit its replica identity.
--
-- Children: their rows are found through the parent, but not with the parent's indexes, and the reaper does not see their pages
-- (PostgreSQL manual, "Inheritance").
-- Rules: they replace the relay's UPDATE or DELETE, or the INSERT of a requeued event (PostgreSQL manual, "Rules on INSERT, UPDATE,
-- and DELETE").
-- Publications: the server rejects an UPDATE or DELETE if the columns of a row filter are not part of the replica identity, or if a
-- column list does not contain it (PostgreSQL manual, "CREATE PUBLICATION"). PostgreSQL 14 has neither, so rows of the catalog are read
-- as JSON.
--
-- $1: the OID of the outbox
-- $2: the columns that statements compare or hash
SELECT 'child', i.inhrelid::regclass::text FROM pg_inherits AS i WHERE i.inhparent = $1
UNION ALL
SELECT 'rule', quote_ident(r.rulename) FROM pg_rewrite AS r
WHERE r.ev_class = $1 AND (r.ev_type IN ('2', '4') OR r.ev_type = '3' AND r.is_instead) AND r.ev_enabled IN ('O', 'A')
UNION ALL
SELECT 'collation', a.attname::text FROM pg_attribute AS a JOIN pg_collation AS c ON c.oid = a.attcollation
WHERE a.attrelid = $1 AND a.attname = ANY ($2) AND NOT a.attisdropped AND NOT c.collisdeterministic
UNION ALL
SELECT 'publication', quote_ident(p.pubname)
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_index AS i ON i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
    AND (c.relreplident = 'd' AND i.indisprimary OR c.relreplident = 'i' AND i.indisreplident)
JOIN pg_publication_tables AS t ON t.schemaname = n.nspname AND t.tablename = c.relname
JOIN pg_publication AS p ON p.pubname = t.pubname AND (p.pubupdate OR p.pubdelete)
LEFT JOIN pg_publication_rel AS r ON r.prpubid = p.oid AND r.prrelid = c.oid
CROSS JOIN LATERAL (SELECT (i.indkey::smallint[])[0 : i.indnkeyatts - 1] AS columns) AS k
WHERE c.oid = $1 AND CASE
    WHEN c.relreplident = 'f' THEN to_jsonb(r) ->> 'prattrs' IS NOT NULL
    ELSE EXISTS (
            SELECT FROM pg_attribute AS a
            WHERE a.attrelid = c.oid AND a.attnum = ANY (k.columns)
                AND NOT coalesce(to_jsonb(t) -> 'attnames', to_jsonb(ARRAY[a.attname])) ? a.attname::text)
        OR EXISTS (
            SELECT FROM regexp_matches(to_jsonb(r) ->> 'prqual', ':varattno ([0-9]+)', 'g') AS v(found)
            WHERE v.found[1]::smallint <> ALL (k.columns)) END
ORDER BY 1, 2;
