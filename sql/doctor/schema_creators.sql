-- Lists who may create objects in the schema of the outbox or in one of the search path of the role, except for superusers and the
-- owner of the outbox. The owner of the schema of the outbox may also drop and replace its tables. From PostgreSQL 15, public belongs
-- to the owner of the database.
-- $1: the schema of the outbox
-- $2: the name of the outbox
SELECT DISTINCT quote_ident(n.nspname), CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname) END, false
FROM pg_namespace AS n
CROSS JOIN LATERAL aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) AS a
LEFT JOIN pg_roles AS r ON r.oid = a.grantee
WHERE (n.nspname = $1::text OR n.nspname IN (
          SELECT CASE btrim(part) WHEN '"$user"' THEN current_user::text ELSE btrim(part, ' "') END
          FROM pg_settings AS s CROSS JOIN LATERAL unnest(string_to_array(s.reset_val, ',')) AS part
          WHERE s.name = 'search_path'))
  AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner AND r.rolsuper IS NOT TRUE
  AND NOT EXISTS (SELECT FROM pg_class AS o
                  WHERE o.relnamespace = n.oid AND n.nspname = $1::text AND o.relname = $2::text AND o.relowner = a.grantee)
UNION
SELECT quote_ident(n.nspname), quote_ident(r.rolname), true
FROM pg_namespace AS n
JOIN pg_class AS o ON o.relnamespace = n.oid AND o.relname = $2::text
JOIN pg_database AS d ON d.datname = current_database()
JOIN pg_roles AS r ON r.oid = CASE WHEN n.nspowner = to_regrole('pg_database_owner') THEN d.datdba ELSE n.nspowner END
WHERE n.nspname = $1::text AND NOT r.rolsuper AND NOT pg_has_role(r.oid, o.relowner, 'MEMBER')
ORDER BY 1, 2;
