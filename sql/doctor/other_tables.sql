-- Lists other tables that the role may use, and how: through PUBLIC, or through a role of which it is a member, else NULL. Tables of
-- extensions are skipped, because they are meant to be public.
-- $1: the schema of the outbox
-- $2: the tables of the outbox and of the modules
-- $3: the maximum number of tables
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname),
       CASE WHEN EXISTS (SELECT FROM aclexplode(c.relacl) AS a WHERE a.grantee = 0) THEN 'PUBLIC'
            ELSE (SELECT quote_ident(r.rolname) FROM pg_auth_members AS m JOIN pg_roles AS r ON r.oid = m.roleid
                  WHERE m.member = (SELECT oid FROM pg_roles WHERE rolname = current_user)
                    AND has_table_privilege(m.roleid, c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')
                  LIMIT 1) END
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm') AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
  AND NOT (n.nspname = $1::text AND c.relname = ANY ($2::text[]))
  AND NOT EXISTS (SELECT FROM pg_depend AS d
                  WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
  AND has_schema_privilege(n.oid, 'USAGE')
  AND (has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')
       OR has_any_column_privilege(c.oid, 'SELECT, INSERT, UPDATE'))
ORDER BY 1
LIMIT $3::bigint;
