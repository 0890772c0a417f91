-- Whether relations and functions with the names of ours are ours.
--
-- A table and its defaults, constraints, indexes, statistics objects, policies and triggers depend on the code that they call. The
-- server does not record dependencies on its own functions. A superuser does not run even the code of the outbox's owner, except
-- for our trigger functions, if nothing of them was changed: they run as that owner. The outbox itself may have code of the
-- application, which only a superuser does not run. The planner of any statement may run that of constraints, indexes and
-- statistics objects. The type of an enum has no code.
--
-- A foreign key on one of our tables may delete or change rows of its own table, whose triggers run as the role that deletes ours
-- (before PostgreSQL 18, with all of that role's rights). Only REFERENCES is needed to create one.
--
-- An owner is trusted if it is a superuser, the current role, or a role that has the rights of the owner of the outbox.
--
-- $1: the schema
-- $2: the outbox
-- $3: the names
-- $4: the names of our trigger functions
-- $5: their bodies
-- $6: whether rows of the outbox are written
WITH relation AS (
    SELECT c.oid, c.relname, c.relkind, c.relowner FROM pg_class AS c JOIN pg_namespace AS s ON s.oid = c.relnamespace
    WHERE s.nspname = $1 AND c.relname = ANY ($3)
), part AS (
    SELECT oid AS relation, relname, 'pg_class'::regclass::oid AS class, oid AS object, false AS is_planned FROM relation
    UNION ALL SELECT r.oid, relname, 'pg_attrdef'::regclass, p.oid, false
    FROM relation AS r JOIN pg_attrdef AS p ON adrelid = r.oid
    UNION ALL SELECT r.oid, relname, 'pg_constraint'::regclass, p.oid, true
    FROM relation AS r JOIN pg_constraint AS p ON conrelid = r.oid
    UNION ALL SELECT r.oid, relname, 'pg_class'::regclass, indexrelid, true
    FROM relation AS r JOIN pg_index ON indrelid = r.oid
    UNION ALL SELECT r.oid, relname, 'pg_statistic_ext'::regclass, p.oid, true
    FROM relation AS r JOIN pg_statistic_ext AS p ON stxrelid = r.oid
    UNION ALL SELECT r.oid, relname, 'pg_policy'::regclass, p.oid, false
    FROM relation AS r JOIN pg_policy AS p ON polrelid = r.oid
    UNION ALL SELECT r.oid, relname, 'pg_trigger'::regclass, p.oid, false
    FROM relation AS r JOIN pg_trigger AS p ON tgrelid = r.oid AND NOT tgisinternal
), code AS MATERIALIZED (
    SELECT part.relation, f.name, f.owner
    FROM part
    JOIN pg_depend AS d ON d.classid = part.class AND d.objid = part.object
    CROSS JOIN LATERAL (
        SELECT proname AS name, proowner AS owner FROM pg_proc
        WHERE d.refclassid = 'pg_proc'::regclass AND oid = d.refobjid
          AND (prosecdef AND proconfig = ARRAY['search_path=pg_catalog, pg_temp']
               AND (proname::text, prosrc) IN (SELECT * FROM unnest($4::text[], $5::text[]))) IS NOT TRUE
        UNION ALL SELECT oprname, oprowner FROM pg_operator
        WHERE d.refclassid = 'pg_operator'::regclass AND oid = d.refobjid
        UNION ALL SELECT typname, typowner FROM pg_type
        WHERE d.refclassid = 'pg_type'::regclass AND oid = d.refobjid AND typtype <> 'e'
        UNION ALL SELECT opcname, opcowner FROM pg_opclass
        WHERE d.refclassid = 'pg_opclass'::regclass AND oid = d.refobjid
    ) AS f
    WHERE part.relname <> $2
       OR ($6 OR part.is_planned) AND (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
), key AS MATERIALIZED (
    SELECT f.oid, r.oid AS relation, f.conname AS name, f.conrelid::regclass::text AS place, c.relowner AS owner
    FROM relation AS r JOIN pg_constraint AS f ON f.confrelid = r.oid JOIN pg_class AS c ON c.oid = f.conrelid
    WHERE f.contype = 'f' AND (r.relname <> $2 OR $6)
      AND (f.confdeltype IN ('c', 'n', 'd') OR f.confupdtype IN ('c', 'n', 'd'))
), function AS (
    SELECT p.proname AS name, p.proowner AS owner FROM pg_proc AS p JOIN pg_namespace AS s ON s.oid = p.pronamespace
    WHERE s.nspname = $1 AND p.proname = ANY ($3)
), trusted AS MATERIALIZED (
    SELECT who.oid, who.rolsuper OR who.rolname = current_user
                    OR NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS is_run
    FROM pg_roles AS who
    WHERE who.oid IN (SELECT relowner FROM relation UNION ALL SELECT owner FROM code UNION ALL SELECT owner FROM key
                      UNION ALL SELECT owner FROM function)
      AND (who.rolsuper OR who.rolname = current_user OR EXISTS (
        SELECT FROM pg_class AS o JOIN pg_namespace AS s ON s.oid = o.relnamespace
        WHERE s.nspname = $1 AND o.relname = $2 AND o.relkind = 'r' AND pg_has_role(who.oid, o.relowner, 'MEMBER')))
)
SELECT r.relname::text, pg_get_userbyid(r.relowner)::text, r.relkind::text,
       EXISTS (SELECT FROM trusted AS t WHERE t.oid = r.relowner),
       EXISTS (SELECT FROM pg_rewrite AS w WHERE w.ev_class = r.oid),
       EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhparent = r.oid),
       (SELECT min(code.name::text) FROM code
        WHERE code.relation = r.oid AND NOT EXISTS (SELECT FROM trusted AS t WHERE t.oid = code.owner AND t.is_run)),
       k.name::text, k.place, pg_get_userbyid(k.owner)::text
FROM relation AS r
LEFT JOIN LATERAL (
    SELECT key.name, key.place, key.owner FROM key
    WHERE key.relation = r.oid AND NOT EXISTS (SELECT FROM trusted AS t WHERE t.oid = key.owner AND t.is_run)
    ORDER BY key.oid
    LIMIT 1
) AS k ON true
UNION ALL
SELECT f.name::text, pg_get_userbyid(f.owner)::text, 'function', false, false, false, NULL, NULL, NULL, NULL
FROM function AS f
WHERE NOT EXISTS (SELECT FROM trusted AS t WHERE t.oid = f.owner);
