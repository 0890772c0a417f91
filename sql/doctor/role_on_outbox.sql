-- Returns whether the role has the privileges of the owner of the outbox, and which columns of an event it may update.
-- $1: the quoted name of the outbox
-- $2: the name of the column sent_at
SELECT pg_has_role(c.relowner, 'USAGE'),
       (SELECT string_agg(a.attname, ', ' ORDER BY a.attnum)
        FROM pg_attribute AS a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname <> $2::text
          AND has_column_privilege(c.oid, a.attnum, 'UPDATE'))
FROM pg_class AS c
WHERE c.oid = $1::text::regclass;
