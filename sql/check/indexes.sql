-- All indexes of the outbox, because the pending index may have another name.
--
-- $1: the OID of the outbox
-- $2: the options of the key columns
-- $3: the column of the IDs
-- $4: the column of the key
-- $5: the column that shows whether a row is sent
SELECT c.relname::text, pg_get_indexdef(i.indexrelid), i.indisvalid AND i.indisready AND i.indislive,
       m.amname = 'btree' AND i.indoption::text = $2
           AND (SELECT bool_and(o.opcdefault) FROM pg_opclass AS o WHERE o.oid = ANY (i.indclass::oid[])),
       pg_get_indexdef(i.indexrelid, 1, false), pg_get_indexdef(i.indexrelid, 2, false),
       pg_get_expr(i.indpred, i.indrelid, false), quote_ident($3::text), quote_ident($4::text), quote_ident($5::text)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_am AS m ON m.oid = c.relam
WHERE i.indrelid = $1;
