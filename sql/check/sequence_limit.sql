-- Returns the sequence of the IDs and its limit if it ends where an integer ends.
-- $1: the quoted name of the outbox
-- $2: the column of the IDs
SELECT format('%I.%I', n.nspname, c.relname), q.seqmax
FROM pg_attribute AS a
JOIN pg_depend AS d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum
                   AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
JOIN pg_sequence AS q ON q.seqrelid = d.objid
JOIN pg_class AS c ON c.oid = q.seqrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE a.attrelid = $1::text::regclass AND a.attname = $2::text AND q.seqincrement > 0
  AND q.seqmax <= 2147483647;
