-- A sequence that the default of the column uses, but that does not belong to it, and the table to which it belongs.
--
-- $1: the OID of the outbox
-- $2: the column of the IDs
SELECT d.refobjid::regclass::text,
       (SELECT min(k.refobjid::regclass::text) FROM pg_depend AS k
        WHERE k.classid = 'pg_class'::regclass AND k.objid = d.refobjid AND k.refclassid = 'pg_class'::regclass
          AND k.refobjsubid > 0 AND k.deptype IN ('a', 'i'))
FROM pg_attribute AS a
JOIN pg_attrdef AS f ON f.adrelid = a.attrelid AND f.adnum = a.attnum
JOIN pg_depend AS d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid AND d.refclassid = 'pg_class'::regclass
JOIN pg_class AS c ON c.oid = d.refobjid AND c.relkind = 'S'
WHERE a.attrelid = $1 AND a.attname = $2::text;
