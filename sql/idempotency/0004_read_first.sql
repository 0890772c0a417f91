-- The same as before, but it reads the key before it inserts one. While the lock is held, it therefore answers at once, even if a
-- transaction that has called idempotency_finish or idempotency_reach for the key is open. Before, retries waited for that transaction.
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
    me       text := CASE WHEN EXISTS (SELECT FROM {idempotency_service}) THEN {idempotency_owner}() ELSE session_user END;
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
        SELECT k.* INTO known FROM {idempotency_key} AS k WHERE k.scope = $1 AND k.key = $2 AND k.owner IN (me, '');
        IF NOT FOUND THEN
            INSERT INTO {idempotency_key} AS k (scope, key, owner, fingerprint, token, locked_until, request)
            VALUES ($1, $2, me, $3, mine, clock_timestamp() + $4, $5)
            ON CONFLICT DO NOTHING
            RETURNING (SELECT s.keys_per_scope FROM {idempotency_service} AS s WHERE s.service = me) INTO keys_max;
            CONTINUE WHEN NOT FOUND; -- another caller has begun it in the meantime
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

-- The same as before, but it also refuses headers that contain an array of strings.
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
    -- A client could not replay anything else. Without `strict`, PostgreSQL unwraps arrays.
    IF jsonb_typeof($5) <> 'object' OR jsonb_path_exists($5, 'strict $.* ? (@.type() <> "string")') THEN
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
