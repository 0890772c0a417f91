-- All indexes of the outbox, because the pending index may have another name, and whether each has the definition of the pending
-- index: ascending, nulls last, for exactly two key columns. The lane expression is different for a key of type varchar.
--
-- $1: the OID of the outbox
-- $2: the column of the IDs
-- $3: the column of the key
-- $4: the column that shows whether a row is sent
SELECT c.relname::text, pg_get_indexdef(i.indexrelid), i.indisvalid AND i.indisready AND i.indislive,
       coalesce(m.amname = 'btree' AND i.indoption::text = '0 0'
                AND (SELECT bool_and(o.opcdefault) FROM pg_opclass AS o WHERE o.oid = ANY (i.indclass::oid[]))
                AND pg_get_indexdef(i.indexrelid, 1, false) IN (
                    format('((hashtext(%I) & 63))', $3::text), format('((hashtext((%I)::text) & 63))', $3::text))
                AND pg_get_indexdef(i.indexrelid, 2, false) = quote_ident($2::text)
                AND pg_get_expr(i.indpred, i.indrelid, false) = format('(%I IS NULL)', $4::text), false)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_am AS m ON m.oid = c.relam
WHERE i.indrelid = $1;
