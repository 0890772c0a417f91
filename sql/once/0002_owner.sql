-- A claim belongs to a service, and no other service sees it or can make it. The claims of earlier versions have no owner:
-- they hold for every service until they expire.
ALTER TABLE {once_key} ADD COLUMN owner text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE {once_key} DROP CONSTRAINT once_key_pkey, ADD PRIMARY KEY (key, owner);

-- Services that use several logins, for example logins that a vault creates. A login that is a member of a role in this table
-- acts as that role.
CREATE TABLE {once_service} (
    service text COLLATE "C" PRIMARY KEY                  -- the name of a role
);

-- The owner of the claims that this session makes: the service of the role that logged in, or that role itself. The
-- other functions call it only if there are services, because most databases have none.
CREATE FUNCTION {once_owner}() RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    services text[];
BEGIN
    -- A superuser counts as a member of every role.
    services := ARRAY(
        SELECT s.service FROM {once_service} AS s
        JOIN pg_roles AS r ON r.rolname = s.service
        JOIN pg_roles AS login ON login.rolname = session_user
        WHERE NOT login.rolsuper AND pg_has_role(login.oid, r.oid, 'MEMBER')
        ORDER BY s.service <> session_user, s.service);
    IF cardinality(services) > 1 AND services[1] <> session_user THEN
        RAISE EXCEPTION 'the role % is a member of several services: %', session_user, array_to_string(services, ', ')
            USING ERRCODE = 'invalid_authorization_specification', HINT = 'Make it a member of one of them';
    END IF;
    RETURN coalesce(services[1], session_user);
END $$;

-- SECURITY DEFINER, because applications have no privilege on the tables.
CREATE OR REPLACE FUNCTION {once_claim}(key text, ttl interval) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    mine  text;
    taken boolean;
BEGIN
    IF $2 IS NULL OR $2 <= interval '0' OR $2 > interval '10 years' THEN
        RAISE EXCEPTION 'the time to live of a claim must be positive, and at most 10 years'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- ON CONFLICT DO UPDATE would lock the row of a taken key.
    SELECT me.owner, EXISTS (SELECT FROM {once_key} AS k
                             WHERE k.key = $1 AND k.owner IN (me.owner, '') AND k.expires_at > clock_timestamp())
    INTO mine, taken
    FROM (SELECT CASE WHEN EXISTS (SELECT FROM {once_service}) THEN {once_owner}() ELSE session_user END AS owner) AS me;
    IF taken THEN
        RETURN false;
    END IF;
    -- The condition is checked again under the row's lock.
    INSERT INTO {once_key} AS k (key, owner, claimed_at, expires_at)
    VALUES ($1, mine, clock_timestamp(), clock_timestamp() + $2)
    ON CONFLICT (key, owner) DO UPDATE SET claimed_at = clock_timestamp(), expires_at = clock_timestamp() + $2
        WHERE k.expires_at <= clock_timestamp();
    RETURN FOUND;
END $$;

-- Deletes at most max_rows expired claims of all services and returns their number. Concurrent calls skip each other's rows.
CREATE OR REPLACE FUNCTION {once_reap}(max_rows integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    cutoff timestamptz := clock_timestamp();
    reaped integer;
BEGIN
    IF $1 IS NULL OR $1 < 1 THEN
        RAISE EXCEPTION 'max_rows must be positive' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    DELETE FROM {once_key} AS k
    WHERE k.ctid = ANY (ARRAY(
              SELECT o.ctid FROM {once_key} AS o
              WHERE o.expires_at <= cutoff
              ORDER BY o.expires_at
              LIMIT $1
              FOR UPDATE SKIP LOCKED))
      AND k.expires_at <= cutoff; -- the key can be claimed again in the meantime
    GET DIAGNOSTICS reaped = ROW_COUNT;
    RETURN reaped;
END $$;

-- Nobody except the owner has privileges on the tables, whatever the default privileges are. Roles that could insert rows or
-- reap before this migration can still call the functions for it.
DO $$
DECLARE
    tables  text[] := ARRAY['once_key', 'once_service'];
    called  text[] := ARRAY['once_claim'];
    reaping text[] := ARRAY['once_reap'];
    hidden  text[] := ARRAY['once_owner'];
    names   text;
    known   record;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    names := (SELECT string_agg(format('%I.%I', {schema_literal}::text, f), ', ') FROM unnest(called || reaping || hidden) AS f);
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', names);
    EXECUTE (SELECT format('REVOKE ALL ON %s FROM PUBLIC', string_agg(
                 format('%I.%I', {schema_literal}::text, t), ', ')) FROM unnest(tables) AS t);
    FOR known IN
        SELECT r.rolname, bool_or(a.privilege_type = 'INSERT') AS writes,
               bool_or(a.privilege_type = 'DELETE') AS deletes
        FROM pg_namespace AS s
        CROSS JOIN LATERAL (
            SELECT c.relowner AS owner, x.* FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS x
            WHERE c.relnamespace = s.oid AND c.relname = ANY (tables)
            UNION ALL
            SELECT c.relowner, x.* FROM pg_class AS c
            JOIN pg_attribute AS t ON t.attrelid = c.oid CROSS JOIN LATERAL aclexplode(t.attacl) AS x
            WHERE c.relnamespace = s.oid AND c.relname = ANY (tables)
            UNION ALL
            SELECT p.proowner, x.* FROM pg_proc AS p CROSS JOIN LATERAL aclexplode(p.proacl) AS x
            WHERE p.pronamespace = s.oid AND p.proname = ANY (called || reaping || hidden)
        ) AS a
        JOIN pg_roles AS r ON r.oid = a.grantee AND r.oid <> a.owner
        WHERE s.nspname = {schema_literal}
        GROUP BY r.rolname
    LOOP
        EXECUTE (SELECT format('REVOKE ALL ON %s FROM %I', string_agg(
                     format('%I.%I', {schema_literal}::text, t), ', '), known.rolname)
                 FROM unnest(tables) AS t);
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM %I', names, known.rolname);
        IF known.writes OR known.deletes THEN
            EXECUTE (SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I', string_agg(
                         format('%I.%I', {schema_literal}::text, f), ', '), known.rolname)
                     FROM unnest(CASE WHEN known.writes THEN called ELSE reaping END) AS f);
        END IF;
    END LOOP;
END $$;
