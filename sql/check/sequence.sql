-- The sequence of the id column, whether it is an identity column or a bigserial.
--
-- $1: the OID of the outbox
-- $2: the column of the IDs
SELECT quote_ident(s.nspname) || '.' || quote_ident(c.relname), q.seqcache, q.seqincrement, q.seqcycle, a.attidentity = 'a',
       has_sequence_privilege(q.seqrelid, 'SELECT') AND has_schema_privilege(s.oid, 'USAGE')
           AND has_column_privilege(a.attrelid, a.attnum, 'SELECT')
FROM pg_attribute AS a
JOIN pg_depend AS d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum
                   AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
JOIN pg_sequence AS q ON q.seqrelid = d.objid
JOIN pg_class AS c ON c.oid = q.seqrelid JOIN pg_namespace AS s ON s.oid = c.relnamespace
WHERE a.attrelid = $1 AND a.attname = $2::text;
