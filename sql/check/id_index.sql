-- Whether there is a valid unique index on the IDs, and whether building the one of this name was interrupted.
--
-- $1: the OID of the outbox
-- $2: the column of the IDs
-- $3: the name of the index
SELECT coalesce(bool_or(i.indisunique AND i.indnkeyatts = 1 AND i.indpred IS NULL AND m.amname = 'btree'
                        AND a.attnum = i.indkey[0] AND i.indisvalid AND i.indisready), false),
       coalesce(bool_or(c.relname = $3::text AND NOT i.indisvalid), false)
FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_am AS m ON m.oid = c.relam
LEFT JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attname = $2::text AND NOT a.attisdropped
WHERE i.indrelid = $1;
