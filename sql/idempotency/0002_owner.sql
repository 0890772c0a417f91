-- A key belongs to a service, and no other service sees it or can use it. The keys of earlier versions have no owner: every
-- service sees them until they are reaped.
ALTER TABLE {idempotency_key} ADD COLUMN owner text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE {idempotency_key} DROP CONSTRAINT idempotency_key_pkey, ADD PRIMARY KEY (scope, key, owner);

-- Services that use several logins, for example logins that a vault creates, or that have a limit. A login that is a member of
-- a role in this table acts as that role.
CREATE TABLE {idempotency_service} (
    service        text COLLATE "C" PRIMARY KEY,          -- the name of a role
    keys_per_scope integer CHECK (keys_per_scope > 0)     -- the maximum; NULL: no limit
);

-- The same as before, with a fixed search path.
CREATE OR REPLACE FUNCTION {idempotency_fingerprint}(request jsonb) RETURNS bytea
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT sha256(convert_to($1::text, 'UTF8'))
$$;

-- The owner of the keys that this session uses: the service of the role that logged in, or that role itself. The
-- other functions call it only if there are services, because most databases have none.
CREATE FUNCTION {idempotency_owner}() RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    services text[];
BEGIN
    -- A superuser counts as a member of every role.
    services := ARRAY(
        SELECT s.service FROM {idempotency_service} AS s
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

-- Begins a request. Call it in a separate transaction, so that others see the lock immediately. The outcomes:
--   started      work, then call idempotency_finish with the token; recovery_point and phases show the committed phases
--   replay       answer with the stored status, headers and body
--   in_progress  another caller has worked for in_progress_seconds; its lock expires in retry_after_seconds
--   mismatch     the key was used for a different request
-- Fails with OB002 if the scope has the maximum number of keys. SECURITY DEFINER, because applications have no privilege on the
-- tables.
CREATE OR REPLACE FUNCTION {idempotency_begin}(
    scope       text,
    key         text,
    fingerprint bytea,
    lock_for    interval,
    request     bytea DEFAULT NULL
) RETURNS TABLE (
    outcome             text,
    token               uuid,
    attempts            integer,
    recovery_point      text,
    phases              jsonb,
    in_progress_seconds double precision,
    retry_after_seconds double precision,
    status              integer,
    headers             jsonb,
    body                bytea
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    mine     uuid := gen_random_uuid();
    me       text;
    known    {idempotency_key}%ROWTYPE;
    keys_max integer;
BEGIN
    IF $4 IS NULL OR $4 <= interval '0' OR $4 > interval '30 days' THEN
        RAISE EXCEPTION 'the time of a lock must be positive, and at most 30 days' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF num_nulls($1, $2, $3) > 0 THEN
        RAISE EXCEPTION 'scope, key and fingerprint must not be NULL' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    -- The error of a constraint would contain the whole row, with the request.
    IF octet_length($3) <> 32 THEN
        RAISE EXCEPTION 'the fingerprint has % bytes, but must have 32', octet_length($3)
            USING ERRCODE = 'check_violation', CONSTRAINT = 'fingerprint_has_32_bytes';
    ELSIF octet_length($1) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'the scope has % bytes, but must have 1 to 512', octet_length($1)
            USING ERRCODE = 'check_violation', CONSTRAINT = 'scope_has_1_to_512_bytes';
    ELSIF $2 COLLATE "C" !~ '^[ -~]{1,255}$' THEN
        RAISE EXCEPTION 'the key must be 1 to 255 printable ASCII characters'
            USING ERRCODE = 'check_violation', CONSTRAINT = 'key_is_1_to_255_printable_ascii';
    ELSIF octet_length($5) > 1048576 THEN
        RAISE EXCEPTION 'the request has % bytes, but the maximum is 1048576', octet_length($5)
            USING ERRCODE = 'check_violation', CONSTRAINT = 'request_has_at_most_1_mib';
    END IF;
    LOOP
        INSERT INTO {idempotency_key} AS k (scope, key, owner, fingerprint, token, locked_until, request)
        SELECT $1, $2, CASE WHEN EXISTS (SELECT FROM {idempotency_service}) THEN {idempotency_owner}() ELSE session_user END,
               $3, mine, clock_timestamp() + $4, $5
        WHERE NOT EXISTS (SELECT FROM {idempotency_key} AS k WHERE k.scope = $1 AND k.key = $2 AND k.owner = '')
        ON CONFLICT DO NOTHING
        RETURNING k.owner, (SELECT s.keys_per_scope FROM {idempotency_service} AS s WHERE s.service = k.owner)
        INTO me, keys_max;
        IF FOUND THEN
            IF keys_max IS NULL THEN
                NULL; -- no limit
            ELSIF keys_max < (SELECT count(*) FROM (SELECT FROM {idempotency_key} AS k WHERE k.scope = $1 AND k.owner = me
                                                    LIMIT keys_max + 1) AS used) THEN
                RAISE EXCEPTION 'this scope has the maximum number of idempotency keys, %', keys_max
                    USING ERRCODE = 'OB002', HINT = 'Try again later: the relay deletes old keys';
            END IF;
            RETURN QUERY SELECT 'started', mine, 1, NULL::text, '{}'::jsonb, NULL::float8, NULL::float8, NULL::integer,
                                NULL::jsonb, NULL::bytea;
            RETURN;
        END IF;

        SELECT k.* INTO known FROM {idempotency_key} AS k
        WHERE k.scope = $1 AND k.key = $2
          AND k.owner IN (CASE WHEN EXISTS (SELECT FROM {idempotency_service}) THEN {idempotency_owner}() ELSE session_user END, '');
        CONTINUE WHEN NOT FOUND; -- released or reaped in the meantime
        IF known.fingerprint <> $3 THEN
            RETURN QUERY SELECT 'mismatch', NULL::uuid, known.attempts, NULL::text, NULL::jsonb, NULL::float8,
                                NULL::float8, NULL::integer, NULL::jsonb, NULL::bytea;
            RETURN;
        END IF;
        IF known.finished_at IS NOT NULL THEN
            RETURN QUERY SELECT 'replay', NULL::uuid, known.attempts, known.recovery_point, NULL::jsonb, NULL::float8,
                                NULL::float8, known.status, known.headers, known.body;
            RETURN;
        END IF;
        IF known.locked_until > clock_timestamp() THEN
            RETURN QUERY SELECT 'in_progress', NULL::uuid, known.attempts, known.recovery_point, NULL::jsonb,
                                extract(epoch FROM clock_timestamp() - known.locked_at)::float8,
                                extract(epoch FROM known.locked_until - clock_timestamp())::float8, NULL::integer,
                                NULL::jsonb, NULL::bytea;
            RETURN;
        END IF;

        -- Waits for a caller that is finishing after its lock expired. PostgreSQL checks the conditions again after the
        -- wait. If they are no longer true, the loop starts again.
        UPDATE {idempotency_key} AS k
        SET token = mine, locked_at = clock_timestamp(), locked_until = clock_timestamp() + $4, attempts = k.attempts + 1
        WHERE k.scope = $1 AND k.key = $2 AND k.owner = known.owner AND k.fingerprint = $3
          AND k.finished_at IS NULL AND k.locked_until <= clock_timestamp()
        RETURNING k.* INTO known;
        IF FOUND THEN
            RETURN QUERY SELECT 'started', mine, known.attempts, known.recovery_point, known.phases, NULL::float8,
                                NULL::float8, NULL::integer, NULL::jsonb, NULL::bytea;
            RETURN;
        END IF;
    END LOOP;
END $$;

-- The token is random and known only to the service that began the request, so the functions that take it need no owner.
CREATE OR REPLACE FUNCTION {idempotency_finish}(
    scope   text,
    key     text,
    token   uuid,
    status  integer,
    headers jsonb DEFAULT NULL,
    body    bytea DEFAULT NULL
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    -- A client could not replay anything else.
    IF jsonb_typeof($5) <> 'object' OR jsonb_path_exists($5, '$.* ? (@.type() <> "string")') THEN
        RAISE EXCEPTION 'the headers must be an object of strings' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF $4 IS NULL OR $4 NOT BETWEEN 100 AND 599 THEN
        RAISE EXCEPTION 'the status is %, but must be from 100 to 599', $4
            USING ERRCODE = 'check_violation', CONSTRAINT = 'status_is_an_http_status';
    ELSIF octet_length($6) > 1048576 THEN
        RAISE EXCEPTION 'the body has % bytes, but the maximum is 1048576', octet_length($6)
            USING ERRCODE = 'check_violation', CONSTRAINT = 'body_has_at_most_1_mib';
    END IF;
    UPDATE {idempotency_key} AS k
    SET status = $4, headers = $5, body = $6, finished_at = clock_timestamp(), request = NULL
    WHERE k.scope = $1 AND k.key = $2 AND k.token = $3 AND k.finished_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lock of this idempotency key is no longer held. Roll back the transaction' USING ERRCODE = 'OB001';
    END IF;
END $$;

-- The data of all phases of a request has at most 1 MiB.
CREATE OR REPLACE FUNCTION {idempotency_reach}(
    scope    text,
    key      text,
    token    uuid,
    phase    text,
    data     jsonb,
    lock_for interval
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    bytes integer;
BEGIN
    IF $6 IS NULL OR $6 <= interval '0' OR $6 > interval '30 days' THEN
        RAISE EXCEPTION 'the time of a lock must be positive, and at most 30 days' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length($4) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'the phase has % bytes, but must have 1 to 255', octet_length($4)
            USING ERRCODE = 'check_violation', CONSTRAINT = 'recovery_point_has_1_to_255_bytes';
    END IF;
    UPDATE {idempotency_key} AS k
    SET recovery_point = $4, phases = k.phases || jsonb_build_object($4, $5), locked_until = clock_timestamp() + $6
    WHERE k.scope = $1 AND k.key = $2 AND k.token = $3 AND k.finished_at IS NULL
    RETURNING octet_length(k.phases::text) INTO bytes;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lock of this idempotency key is no longer held. Roll back the transaction' USING ERRCODE = 'OB001';
    END IF;
    IF bytes > 1048576 THEN
        RAISE EXCEPTION 'the data of the phases has % bytes, but the maximum is 1048576', bytes
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Store a reference instead';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION {idempotency_extend}(scope text, key text, token uuid, lock_for interval) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF $4 IS NULL OR $4 <= interval '0' OR $4 > interval '30 days' THEN
        RAISE EXCEPTION 'the time of a lock must be positive, and at most 30 days' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    UPDATE {idempotency_key} AS k SET locked_until = clock_timestamp() + $4
    WHERE k.scope = $1 AND k.key = $2 AND k.token = $3 AND k.finished_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lock of this idempotency key is no longer held. Roll back the transaction' USING ERRCODE = 'OB001';
    END IF;
END $$;

-- Releases a request that failed before its response, so a retry can begin immediately. If no phase was committed and no body
-- is kept, the key is deleted. With a kept body, idempotency_abandoned returns it later. Returns false if the lock is no longer
-- held.
CREATE OR REPLACE FUNCTION {idempotency_release}(scope text, key text, token uuid) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM {idempotency_key} AS k
    WHERE k.scope = $1 AND k.key = $2 AND k.token = $3 AND k.finished_at IS NULL
      AND k.recovery_point IS NULL AND k.request IS NULL;
    IF FOUND THEN
        RETURN true;
    END IF;
    UPDATE {idempotency_key} AS k SET token = NULL, locked_until = clock_timestamp()
    WHERE k.scope = $1 AND k.key = $2 AND k.token = $3 AND k.finished_at IS NULL;
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION {idempotency_abandoned}(
    older_than   interval,
    lock_for     interval,
    max_keys     integer,
    max_attempts integer
) RETURNS TABLE (
    scope          text,
    key            text,
    token          uuid,
    attempts       integer,
    recovery_point text,
    phases         jsonb,
    request        bytea
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    me     text        := {idempotency_owner}();
    cutoff timestamptz := clock_timestamp() - $1;
BEGIN
    IF $2 IS NULL OR $2 <= interval '0' OR $2 > interval '30 days' THEN
        RAISE EXCEPTION 'the time of a lock must be positive, and at most 30 days' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF num_nulls($1, $3, $4) > 0 THEN
        RAISE EXCEPTION 'older_than, max_keys and max_attempts must not be NULL' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    RETURN QUERY
    WITH due AS MATERIALIZED (
        SELECT k.scope, k.key, k.owner FROM {idempotency_key} AS k
        WHERE k.finished_at IS NULL AND k.owner IN (me, '') AND k.created_at < cutoff AND k.attempts < $4
          AND k.locked_until <= clock_timestamp() AND (k.retry_at IS NULL OR k.retry_at <= clock_timestamp())
        ORDER BY k.created_at
        LIMIT $3
        FOR UPDATE SKIP LOCKED
    )
    UPDATE {idempotency_key} AS k
    SET token = gen_random_uuid(), locked_at = clock_timestamp(), locked_until = clock_timestamp() + $2,
        attempts = k.attempts + 1,
        retry_at = clock_timestamp() + $2 + least(power(2::float8, least(k.attempts, 12)::float8), 3600::float8) * random()
                                            * interval '1 second'
    FROM due WHERE k.scope = due.scope AND k.key = due.key AND k.owner = due.owner
    RETURNING k.scope, k.key, k.token, k.attempts, k.recovery_point, k.phases, k.request;
END $$;

-- Deletes at most max_rows requests of all services, and returns their number: those that finished before the retention, and
-- unfinished ones without a committed phase that are not locked and began more than 30 days ago, or before the retention if
-- that is longer. A client that repeats its request after that repeats its effect. An unfinished request with a committed phase
-- stays, because its effect may be known only in another system. Concurrent calls skip each other's rows.
CREATE OR REPLACE FUNCTION {idempotency_reap}(retention interval, max_rows integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    cutoff   timestamptz := clock_timestamp() - $1;
    given_up timestamptz := clock_timestamp() - greatest($1, interval '30 days');
    finished integer;
    reaped   integer;
BEGIN
    IF $1 IS NULL OR $1 < interval '0' OR $2 IS NULL OR $2 < 1 THEN
        RAISE EXCEPTION 'the retention must not be negative, and max_rows must be positive'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    DELETE FROM {idempotency_key} AS k
    WHERE k.ctid = ANY (ARRAY(
              SELECT o.ctid FROM {idempotency_key} AS o
              WHERE o.finished_at < cutoff
              ORDER BY o.finished_at
              LIMIT $2
              FOR UPDATE SKIP LOCKED))
      AND k.finished_at < cutoff; -- a ctid can belong to a new row in the meantime
    GET DIAGNOSTICS finished = ROW_COUNT;
    DELETE FROM {idempotency_key} AS k
    WHERE k.ctid = ANY (ARRAY(
              SELECT o.ctid FROM {idempotency_key} AS o
              WHERE o.finished_at IS NULL AND o.created_at < given_up AND o.recovery_point IS NULL
                AND o.locked_until <= clock_timestamp()
              ORDER BY o.created_at
              LIMIT $2 - finished
              FOR UPDATE SKIP LOCKED))
      AND k.finished_at IS NULL AND k.created_at < given_up AND k.recovery_point IS NULL;
    GET DIAGNOSTICS reaped = ROW_COUNT;
    RETURN finished + reaped;
END $$;

-- Returns the number of unfinished requests of all services that were begun longer than older_than ago, and the time of the
-- oldest. Counts at most 1000.
CREATE OR REPLACE FUNCTION {idempotency_unfinished}(older_than interval)
    RETURNS TABLE (requests bigint, oldest timestamptz)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    cutoff timestamptz := clock_timestamp() - $1;
BEGIN
    RETURN QUERY
    SELECT count(*), min(o.created_at)
    FROM (SELECT k.created_at FROM {idempotency_key} AS k
          WHERE k.finished_at IS NULL AND k.created_at < cutoff
          ORDER BY k.created_at
          LIMIT 1000) AS o;
END $$;

-- Nobody except the owner has privileges on the tables, whatever the default privileges are. Roles that could insert rows or
-- reap before this migration can still call the functions for it.
DO $$
DECLARE
    tables  text[] := ARRAY['idempotency_key', 'idempotency_service'];
    called  text[] := ARRAY['idempotency_fingerprint', 'idempotency_begin', 'idempotency_finish', 'idempotency_reach',
                           'idempotency_extend', 'idempotency_release', 'idempotency_abandoned'];
    reaping text[] := ARRAY['idempotency_reap', 'idempotency_unfinished'];
    hidden  text[] := ARRAY['idempotency_owner'];
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
