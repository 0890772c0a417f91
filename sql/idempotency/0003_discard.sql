-- Releases a request that failed before its response, so a retry can begin immediately. If no phase was committed and no body
-- is kept, the key is deleted. With a kept body, idempotency_abandoned returns it later, unless discard is true: use that for a
-- request that was refused. Returns false if the lock is no longer held.
CREATE FUNCTION {idempotency_release}(
    scope   text,
    key     text,
    token   uuid,
    discard boolean DEFAULT false
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM {idempotency_key} AS k
    WHERE k.scope = $1 AND k.key = $2 AND k.token = $3 AND k.finished_at IS NULL
      AND k.recovery_point IS NULL AND (k.request IS NULL OR $4);
    IF FOUND THEN
        RETURN true;
    END IF;
    UPDATE {idempotency_key} AS k SET token = NULL, locked_until = clock_timestamp()
    WHERE k.scope = $1 AND k.key = $2 AND k.token = $3 AND k.finished_at IS NULL;
    RETURN FOUND;
END $$;

-- Replaces the function with three parameters. The roles that could call it, and no others, can call the new one.
DO $$
DECLARE
    release  text;
    old_role name;
    known    record;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    release := format('%I.idempotency_release', {schema_literal}::text);
    old_role := (SELECT pg_get_userbyid(proowner) FROM pg_proc
                 WHERE oid = (release || '(text, text, uuid)')::regprocedure);
    IF old_role <> current_user THEN
        EXECUTE format('ALTER FUNCTION %s(text, text, uuid, boolean) OWNER TO %I', release, old_role);
    END IF;
    EXECUTE format('REVOKE ALL ON FUNCTION %s(text, text, uuid, boolean) FROM PUBLIC', release);
    FOR known IN
        SELECT r.rolname, bool_or(p.pronargs = 3) AS calls
        FROM pg_proc AS p
        CROSS JOIN LATERAL aclexplode(p.proacl) AS a
        JOIN pg_roles AS r ON r.oid = a.grantee AND r.oid <> p.proowner
        WHERE p.oid IN ((release || '(text, text, uuid)')::regprocedure,
                        (release || '(text, text, uuid, boolean)')::regprocedure)
        GROUP BY r.rolname
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s(text, text, uuid, boolean) FROM %I', release, known.rolname);
        IF known.calls THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s(text, text, uuid, boolean) TO %I', release, known.rolname);
        END IF;
    END LOOP;
    EXECUTE format('DROP FUNCTION %s(text, text, uuid)', release);
END $$;
