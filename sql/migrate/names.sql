-- The names for a GRANT statement, and whether the role may create tables in the schema.
--
-- $1: the schema
SELECT current_user::text, current_database()::text, s.oid IS NOT NULL,
       coalesce(has_schema_privilege(s.oid, 'CREATE') AND has_schema_privilege(s.oid, 'USAGE'), false)
FROM (SELECT $1::text AS name) AS wanted
LEFT JOIN pg_namespace AS s ON s.nspname = wanted.name;
