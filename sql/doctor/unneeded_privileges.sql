-- Lists privileges on tables of the outbox that no role needs, for example by default privileges of the owner: those that let a role
-- run code or empty a table, changes of what migrations and operators have done, and changes of the sequences of its own tables.
-- $1: the schema of the outbox
-- $2: the tables of the outbox
-- $3: those of them that record what was done
SELECT coalesce(quote_ident(r.rolname), 'PUBLIC'),
       string_agg(DISTINCT quote_ident(c.relname) || ' (' || a.privilege_type || ')', ', '),
       string_agg(DISTINCT quote_ident($1::text) || '.' || quote_ident(c.relname), ', ')
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname = $1::text
CROSS JOIN LATERAL aclexplode(c.relacl) AS a
LEFT JOIN pg_roles AS r ON r.oid = a.grantee
WHERE a.grantee <> c.relowner AND r.rolsuper IS NOT TRUE
  AND CASE WHEN c.relname = ANY ($2::text[])
           THEN a.privilege_type IN ('TRUNCATE', 'REFERENCES', 'TRIGGER') OR a.grantee = 0
                OR c.relname = ANY ($3::text[]) AND a.privilege_type IN ('INSERT', 'UPDATE', 'DELETE')
           ELSE c.relkind = 'S' AND a.privilege_type = 'UPDATE' AND EXISTS (
               SELECT FROM pg_depend AS d
               JOIN pg_class AS t ON t.oid = d.refobjid AND t.relnamespace = n.oid AND t.relname = ANY ($2::text[])
               WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.refclassid = 'pg_class'::regclass
                 AND t.oid <> :'outbox'::regclass) END
GROUP BY 1
ORDER BY 1
LIMIT 10;
