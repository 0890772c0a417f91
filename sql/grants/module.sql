DO $$
DECLARE
    member name;
BEGIN
    IF pg_catalog.to_regclass({services_literal}) IS NULL THEN
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {group_literal}) THEN
        CREATE ROLE {group} NOLOGIN;
    END IF;
    FOR member IN
        SELECT m.rolname
        FROM pg_catalog.pg_proc AS p
        CROSS JOIN LATERAL pg_catalog.aclexplode(p.proacl) AS a
        JOIN pg_catalog.pg_roles AS w ON w.oid = a.grantee AND w.rolname = {writer_literal}
        JOIN pg_catalog.pg_auth_members AS am ON am.roleid = w.oid
        JOIN pg_catalog.pg_roles AS m ON m.oid = am.member AND m.rolname <> current_user
        WHERE p.oid = {call_literal}::pg_catalog.regproc
    LOOP
        EXECUTE pg_catalog.format('GRANT %I TO %I', {group_literal}, member);
    END LOOP;
    REVOKE ALL ON {table}, {services} FROM {roles};
    REVOKE ALL ON FUNCTION {functions} FROM {roles};
    {grants}
END $$;
