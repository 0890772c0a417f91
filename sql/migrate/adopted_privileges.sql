-- The tables next to it, and the functions that only triggers and commands call.
DO $$
DECLARE
    known record;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    FOR known IN
        SELECT DISTINCT format('TABLE %s', c.oid::regclass) AS object, quote_ident(r.rolname) AS grantee
        FROM (SELECT applied_at > now() - interval '1 hour' AND NOT EXISTS (SELECT FROM {setting}) AS is_new
              FROM {migration} WHERE number = 1) AS n,
             pg_class AS c
        CROSS JOIN LATERAL aclexplode(c.relacl) AS a
        LEFT JOIN pg_roles AS r ON r.oid = a.grantee
        WHERE a.grantee <> c.relowner AND n.is_new
          AND EXISTS (SELECT FROM pg_default_acl AS f CROSS JOIN LATERAL aclexplode(f.defaclacl) AS g
                      WHERE f.defaclrole = c.relowner AND f.defaclobjtype IN ('r', 'S')
                        AND f.defaclnamespace IN (0, c.relnamespace) AND g.grantee = a.grantee)
          AND c.oid = ANY (ARRAY[{lane_literal}, {dead_letter_literal}, {hold_literal}, {blocked_key_literal}, {pause_literal},
                                 {act_literal}, {hold_version_literal}, {setting_literal}, {reaper_literal},
                                 {migration_literal}]::regclass[])
        UNION
        SELECT format('FUNCTION %s', p.oid::regprocedure), quote_ident(r.rolname)
        FROM (SELECT applied_at > now() - interval '1 hour' AND NOT EXISTS (SELECT FROM {setting}) AS is_new
              FROM {migration} WHERE number = 1) AS n,
             pg_proc AS p
        CROSS JOIN LATERAL aclexplode(p.proacl) AS a
        LEFT JOIN pg_roles AS r ON r.oid = a.grantee
        WHERE a.grantee <> p.proowner AND n.is_new
          AND EXISTS (SELECT FROM pg_default_acl AS f CROSS JOIN LATERAL aclexplode(f.defaclacl) AS g
                      WHERE f.defaclrole = p.proowner AND f.defaclobjtype = 'f'
                        AND f.defaclnamespace IN (0, p.pronamespace) AND g.grantee = a.grantee)
          AND p.oid = ANY (ARRAY[{record_act_literal}, {act_recorded_literal}, {hold_changed_literal}]::regproc[])
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s CASCADE', known.object, coalesce(known.grantee, 'PUBLIC'));
    END LOOP;
END $$;

-- The payload of a dead letter is stored as it was in the outbox. Otherwise the server would try again to compress a large one that
-- it could not compress there, which takes most of the time of a move.
ALTER TABLE {dead_letter} ALTER COLUMN payload SET STORAGE EXTERNAL;
