-- The publication for which the server needs a replica identity, which the table does not have (PostgreSQL manual, "Replica
-- Identity"), and the index that can serve as one.
--
-- $1: the OID of the outbox
-- $2: its schema
-- $3: its name
-- $4: the column of the IDs
SELECT quote_ident(p.pubname), (
    SELECT quote_ident(x.relname) FROM pg_index AS i JOIN pg_class AS x ON x.oid = i.indexrelid
    JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] AND a.attname = $4::text AND a.attnotnull
    WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indnkeyatts = 1 AND i.indpred IS NULL
    ORDER BY i.indisprimary DESC LIMIT 1)
FROM pg_class AS c
JOIN pg_publication_tables AS t ON t.schemaname = $2::text AND t.tablename = $3::text
JOIN pg_publication AS p ON p.pubname = t.pubname AND (p.pubupdate OR p.pubdelete)
WHERE c.oid = $1 AND CASE c.relreplident
    WHEN 'd' THEN NOT EXISTS (
        SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate AND i.indisvalid)
    WHEN 'i' THEN NOT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisreplident AND i.indisvalid)
    ELSE c.relreplident = 'n' END
LIMIT 1;
