-- Requests with an idempotency key: the lock, the committed phases and the response of each. The response is stored in the
-- transaction of the business change, so both are committed or neither is. All times are from the server's clock.
CREATE TABLE {idempotency_key} (
    scope          text COLLATE "C" NOT NULL,             -- method, path and subject, so subjects do not share keys
    key            text COLLATE "C" NOT NULL,             -- as sent by the client
    fingerprint    bytea       NOT NULL,                  -- sha256 of the request in canonical form
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    token          uuid,                                  -- of the current lock; NULL: released
    locked_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    locked_until   timestamptz NOT NULL,                  -- later, another caller can take the request over with a new token
    attempts       integer     NOT NULL DEFAULT 1,        -- how often the request was begun
    retry_at       timestamptz,                           -- idempotency_abandoned skips the request until then
    recovery_point text,                                  -- the last committed phase
    phases         jsonb       NOT NULL DEFAULT '{}',     -- the data of each committed phase
    request        bytea,                                 -- the body of the request, if the caller keeps it; NULL once finished
    finished_at    timestamptz,
    status         integer,                               -- the stored response
    headers        jsonb,                                 -- an object of strings
    body           bytea,
    PRIMARY KEY (scope, key),
    CONSTRAINT scope_has_1_to_512_bytes CHECK (octet_length(scope) BETWEEN 1 AND 512),
    CONSTRAINT key_is_1_to_255_printable_ascii CHECK (key ~ '^[ -~]{1,255}$'),
    CONSTRAINT fingerprint_has_32_bytes CHECK (octet_length(fingerprint) = 32),
    CONSTRAINT recovery_point_has_1_to_255_bytes CHECK (octet_length(recovery_point) BETWEEN 1 AND 255),
    CONSTRAINT request_has_at_most_1_mib CHECK (octet_length(request) <= 1048576),
    CONSTRAINT status_is_an_http_status CHECK (status BETWEEN 100 AND 599),
    CONSTRAINT body_has_at_most_1_mib CHECK (octet_length(body) <= 1048576),
    CONSTRAINT finished_with_a_status CHECK ((finished_at IS NULL) = (status IS NULL))
);
CREATE INDEX ON {idempotency_key} (finished_at) WHERE finished_at IS NOT NULL; -- for the reaper
CREATE INDEX ON {idempotency_key} (created_at) WHERE finished_at IS NULL;      -- for unfinished requests

-- The fingerprint of a JSON request, for callers that do not compute their own. Use the same method for all requests of a
-- scope. The crate pg-outbox computes other fingerprints.
CREATE FUNCTION {idempotency_fingerprint}(request jsonb) RETURNS bytea
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT sha256(convert_to($1::text, 'UTF8'))
$$;

-- Begins a request. Call it in a separate transaction, so that others see the lock immediately. The outcomes:
--   started      work, then call idempotency_finish with the token; recovery_point and phases show the committed phases
--   replay       answer with the stored status, headers and body
--   in_progress  another caller has worked for in_progress_seconds; its lock expires in retry_after_seconds
--   mismatch     the key was used for a different request
CREATE FUNCTION {idempotency_begin}(
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
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    mine  uuid := gen_random_uuid();
    known {idempotency_key}%ROWTYPE;
BEGIN
    IF $4 IS NULL OR $4 <= interval '0' THEN
        RAISE EXCEPTION 'the time of a lock must be positive' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    LOOP
        INSERT INTO {idempotency_key} (scope, key, fingerprint, token, locked_until, request)
        VALUES ($1, $2, $3, mine, clock_timestamp() + $4, $5)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN QUERY SELECT 'started', mine, 1, NULL::text, '{}'::jsonb, NULL::float8, NULL::float8, NULL::integer,
                                NULL::jsonb, NULL::bytea;
            RETURN;
        END IF;

        SELECT k.* INTO known FROM {idempotency_key} AS k WHERE k.scope = $1 AND k.key = $2;
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
        WHERE k.scope = $1 AND k.key = $2 AND k.fingerprint = $3
          AND k.finished_at IS NULL AND k.locked_until <= clock_timestamp()
        RETURNING k.* INTO known;
        IF FOUND THEN
            RETURN QUERY SELECT 'started', mine, known.attempts, known.recovery_point, known.phases, NULL::float8,
                                NULL::float8, NULL::integer, NULL::jsonb, NULL::bytea;
            RETURN;
        END IF;
    END LOOP;
END $$;

-- Stores the response. Call it in the transaction of the business change. If the request was taken over or is already
-- finished, it fails with OB001, and the transaction can only be rolled back.
CREATE FUNCTION {idempotency_finish}(
    scope   text,
    key     text,
    token   uuid,
    status  integer,
    headers jsonb DEFAULT NULL,
    body    bytea DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    UPDATE {idempotency_key} AS k
    SET status = $4, headers = $5, body = $6, finished_at = clock_timestamp(), request = NULL
    WHERE k.scope = $1 AND k.key = $2 AND k.token = $3 AND k.finished_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lock of this idempotency key is no longer held. Roll back the transaction' USING ERRCODE = 'OB001';
    END IF;
END $$;

-- Records that a phase is done, stores its data for later phases, and extends the lock to lock_for from now. Call it in the
-- transaction of the phase. Fails with OB001 like idempotency_finish.
CREATE FUNCTION {idempotency_reach}(
    scope    text,
    key      text,
    token    uuid,
    phase    text,
    data     jsonb,
    lock_for interval
) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    UPDATE {idempotency_key} AS k
    SET recovery_point = $4, phases = k.phases || jsonb_build_object($4, $5), locked_until = clock_timestamp() + $6
    WHERE k.scope = $1 AND k.key = $2 AND k.token = $3 AND k.finished_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lock of this idempotency key is no longer held. Roll back the transaction' USING ERRCODE = 'OB001';
    END IF;
END $$;

-- Extends the lock to lock_for from now, for a long call to another system. Fails with OB001 like idempotency_finish.
CREATE FUNCTION {idempotency_extend}(scope text, key text, token uuid, lock_for interval) RETURNS void
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    UPDATE {idempotency_key} AS k SET locked_until = clock_timestamp() + $4
    WHERE k.scope = $1 AND k.key = $2 AND k.token = $3 AND k.finished_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lock of this idempotency key is no longer held. Roll back the transaction' USING ERRCODE = 'OB001';
    END IF;
END $$;

-- Releases a request that failed before its response, so a retry can begin immediately. If no phase was committed, the key
-- is deleted. Returns false if the lock is no longer held.
CREATE FUNCTION {idempotency_release}(scope text, key text, token uuid) RETURNS boolean
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM {idempotency_key} AS k
    WHERE k.scope = $1 AND k.key = $2 AND k.token = $3 AND k.finished_at IS NULL AND k.recovery_point IS NULL;
    IF FOUND THEN
        RETURN true;
    END IF;
    UPDATE {idempotency_key} AS k SET token = NULL, locked_until = clock_timestamp()
    WHERE k.scope = $1 AND k.key = $2 AND k.token = $3 AND k.finished_at IS NULL;
    RETURN FOUND;
END $$;

-- Takes over unfinished requests that are not locked and were begun longer than older_than ago. Each is returned to one
-- caller, which must finish or release it with the token. An unfinished request is returned again after lock_for and a
-- pause that doubles with each attempt, up to an hour. Requests with max_attempts attempts are not returned.
CREATE FUNCTION {idempotency_abandoned}(
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
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    cutoff timestamptz := clock_timestamp() - $1;
BEGIN
    RETURN QUERY
    WITH due AS MATERIALIZED (
        SELECT k.scope, k.key FROM {idempotency_key} AS k
        WHERE k.finished_at IS NULL AND k.created_at < cutoff AND k.attempts < $4
          AND k.locked_until <= clock_timestamp() AND (k.retry_at IS NULL OR k.retry_at <= clock_timestamp())
        ORDER BY k.created_at
        LIMIT $3
        FOR UPDATE SKIP LOCKED
    )
    UPDATE {idempotency_key} AS k
    SET token = gen_random_uuid(), locked_at = clock_timestamp(), locked_until = clock_timestamp() + $2,
        attempts = k.attempts + 1,
        retry_at = clock_timestamp() + $2 + least(power(2, least(k.attempts, 12)), 3600) * random() * interval '1 second'
    FROM due WHERE k.scope = due.scope AND k.key = due.key
    RETURNING k.scope, k.key, k.token, k.attempts, k.recovery_point, k.phases, k.request;
END $$;

-- Deletes at most max_rows finished requests that are older than the retention, and returns their number. A client that
-- repeats its request after that repeats its effect. Unfinished requests stay. Concurrent calls delete nothing.
CREATE FUNCTION {idempotency_reap}(retention interval, max_rows integer) RETURNS integer
    LANGUAGE plpgsql AS $$
DECLARE
    cutoff timestamptz := clock_timestamp() - $1;
    reaped integer;
BEGIN
    IF NOT pg_try_advisory_xact_lock(
        hashtextextended('outbox-relay reaper of idempotency keys in ' || {schema_literal}, 0)) THEN
        RETURN 0;
    END IF;
    DELETE FROM {idempotency_key} AS k
    WHERE k.ctid = ANY (ARRAY(
              SELECT o.ctid FROM {idempotency_key} AS o
              WHERE o.finished_at < cutoff
              ORDER BY o.finished_at
              LIMIT $2))
      AND k.finished_at < cutoff; -- a ctid can belong to a new row in the meantime
    GET DIAGNOSTICS reaped = ROW_COUNT;
    RETURN reaped;
END $$;

-- Returns the number of unfinished requests that were begun longer than older_than ago, and the time of the oldest. Counts
-- at most 1000.
CREATE FUNCTION {idempotency_unfinished}(older_than interval)
    RETURNS TABLE (requests bigint, oldest timestamptz) LANGUAGE plpgsql AS $$
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
