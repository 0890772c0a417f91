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
    SELECT oid AS relation, 'pg_class'::regclass::oid AS class, oid AS object, false AS is_planned FROM relation
    UNION ALL SELECT adrelid, 'pg_attrdef'::regclass, oid, false FROM pg_attrdef
    UNION ALL SELECT conrelid, 'pg_constraint'::regclass, oid, true FROM pg_constraint
    UNION ALL SELECT indrelid, 'pg_class'::regclass, indexrelid, true FROM pg_index
    UNION ALL SELECT stxrelid, 'pg_statistic_ext'::regclass, oid, true FROM pg_statistic_ext
    UNION ALL SELECT polrelid, 'pg_policy'::regclass, oid, false FROM pg_policy
    UNION ALL SELECT tgrelid, 'pg_trigger'::regclass, oid, false FROM pg_trigger WHERE NOT tgisinternal
), code AS (
    SELECT 'pg_proc'::regclass::oid AS class, oid, proname AS name, proowner AS owner FROM pg_proc
    WHERE NOT (prosecdef AND proconfig = ARRAY['search_path=pg_catalog, pg_temp']
               AND (proname::text, prosrc) IN (SELECT * FROM unnest($4::text[], $5::text[])))
    UNION ALL SELECT 'pg_operator'::regclass, oid, oprname, oprowner FROM pg_operator
    UNION ALL SELECT 'pg_type'::regclass, oid, typname, typowner FROM pg_type WHERE typtype <> 'e'
    UNION ALL SELECT 'pg_opclass'::regclass, oid, opcname, opcowner FROM pg_opclass
)
SELECT r.relname::text, pg_get_userbyid(r.relowner)::text, r.relkind::text, EXISTS (
        SELECT FROM pg_roles AS who WHERE who.oid = r.relowner AND (who.rolsuper OR who.rolname = current_user OR EXISTS (
            SELECT FROM pg_class AS o JOIN pg_namespace AS s ON s.oid = o.relnamespace
            WHERE s.nspname = $1 AND o.relname = $2 AND o.relkind = 'r' AND pg_has_role(who.oid, o.relowner, 'MEMBER')))),
       EXISTS (SELECT FROM pg_rewrite AS w WHERE w.ev_class = r.oid),
       EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhparent = r.oid),
       (SELECT min(code.name::text)
        FROM part JOIN pg_depend AS d ON d.classid = part.class AND d.objid = part.object
        JOIN code ON code.class = d.refclassid AND code.oid = d.refobjid
        WHERE part.relation = r.oid
          AND (r.relname <> $2
               OR ($6 OR part.is_planned) AND (SELECT rolsuper FROM pg_roles WHERE rolname = current_user))
          AND NOT EXISTS (SELECT FROM pg_roles AS who
                          WHERE who.oid = code.owner AND (who.rolsuper OR who.rolname = current_user))
          AND ((SELECT rolsuper FROM pg_roles WHERE rolname = current_user) OR NOT EXISTS (
        SELECT FROM pg_roles AS who WHERE who.oid = code.owner AND (who.rolsuper OR who.rolname = current_user OR EXISTS (
            SELECT FROM pg_class AS o JOIN pg_namespace AS s ON s.oid = o.relnamespace
            WHERE s.nspname = $1 AND o.relname = $2 AND o.relkind = 'r' AND pg_has_role(who.oid, o.relowner, 'MEMBER')))))),
       k.name::text, k.place, k.owner::text
FROM relation AS r
LEFT JOIN LATERAL (
    SELECT f.conname AS name, f.conrelid::regclass::text AS place, pg_get_userbyid(c.relowner) AS owner
    FROM pg_constraint AS f JOIN pg_class AS c ON c.oid = f.conrelid
    WHERE f.contype = 'f' AND f.confrelid = r.oid AND (r.relname <> $2 OR $6)
      AND (f.confdeltype IN ('c', 'n', 'd') OR f.confupdtype IN ('c', 'n', 'd'))
      AND NOT EXISTS (SELECT FROM pg_roles AS who
                      WHERE who.oid = c.relowner AND (who.rolsuper OR who.rolname = current_user))
      AND ((SELECT rolsuper FROM pg_roles WHERE rolname = current_user) OR NOT EXISTS (
        SELECT FROM pg_roles AS who WHERE who.oid = c.relowner AND (who.rolsuper OR who.rolname = current_user OR EXISTS (
            SELECT FROM pg_class AS o JOIN pg_namespace AS s ON s.oid = o.relnamespace
            WHERE s.nspname = $1 AND o.relname = $2 AND o.relkind = 'r' AND pg_has_role(who.oid, o.relowner, 'MEMBER')))))
    ORDER BY f.oid
    LIMIT 1
) AS k ON true
UNION ALL
SELECT p.proname::text, pg_get_userbyid(p.proowner)::text, 'function', false, false, false, NULL, NULL, NULL, NULL
FROM pg_proc AS p JOIN pg_namespace AS s ON s.oid = p.pronamespace
WHERE s.nspname = $1 AND p.proname = ANY ($3) AND NOT EXISTS (
        SELECT FROM pg_roles AS who WHERE who.oid = p.proowner AND (who.rolsuper OR who.rolname = current_user OR EXISTS (
            SELECT FROM pg_class AS o JOIN pg_namespace AS s ON s.oid = o.relnamespace
            WHERE s.nspname = $1 AND o.relname = $2 AND o.relkind = 'r' AND pg_has_role(who.oid, o.relowner, 'MEMBER'))));
