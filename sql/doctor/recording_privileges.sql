-- Returns whether the role may read the recorded settings, and whether it may record them, or is the role of an operator, which
-- need not. Returns no row if the table is missing.
-- $1: the schema of the outbox
-- $2: the name of the table
-- $3: the columns that a relay replaces
SELECT has_table_privilege(c.oid, 'SELECT'),
       has_column_privilege(c.oid, 'topic_template', 'INSERT')
       AND NOT EXISTS (SELECT FROM pg_attribute AS a
                       WHERE a.attrelid = c.oid AND a.attname = ANY ($3::text[])
                         AND NOT has_column_privilege(c.oid, a.attnum, 'UPDATE'))
       OR EXISTS (
           SELECT r.rolname::text FROM pg_roles AS r JOIN pg_roles AS o ON o.rolname = r.rolname || '_operator'
           WHERE pg_has_role(o.oid, 'MEMBER') AND r.rolname <> current_user
             AND NOT EXISTS (SELECT FROM pg_roles AS me WHERE me.rolname = current_user AND me.rolsuper)
           LIMIT 1)
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1::text AND c.relname = $2::text AND c.relkind = 'r';
