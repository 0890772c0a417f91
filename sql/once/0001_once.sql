-- Claims of a key for a limited time, for jobs, webhooks and e-mails. Like SET key NX PX in Redis, but in a transaction.
CREATE TABLE {once_key} (
    key        text COLLATE "C" PRIMARY KEY,
    claimed_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT key_has_1_to_255_bytes CHECK (octet_length(key) BETWEEN 1 AND 255)
);
CREATE INDEX ON {once_key} (expires_at);                 -- for the reaper

-- Claims the key. Returns true for the first caller, and false for all others until the time to live has passed. The time
-- counts from this call, by the server's clock. A rollback releases the key. If another open transaction has claimed the
-- key, it waits until that one ends. In REPEATABLE READ and SERIALIZABLE, it fails with 40001 if the claim was committed
-- after this transaction's snapshot. Then retry the transaction.
CREATE FUNCTION {once_claim}(key text, ttl interval) RETURNS boolean
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF $2 IS NULL OR $2 <= interval '0' THEN
        RAISE EXCEPTION 'the time to live of a claim must be positive' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- ON CONFLICT DO UPDATE would lock the row of a taken key.
    IF EXISTS (SELECT FROM {once_key} AS k WHERE k.key = $1 AND k.expires_at > clock_timestamp()) THEN
        RETURN false;
    END IF;
    -- The condition is checked again under the row's lock.
    INSERT INTO {once_key} AS k (key, claimed_at, expires_at)
    VALUES ($1, clock_timestamp(), clock_timestamp() + $2)
    ON CONFLICT (key) DO UPDATE SET claimed_at = clock_timestamp(), expires_at = clock_timestamp() + $2
        WHERE k.expires_at <= clock_timestamp();
    RETURN FOUND;
END $$;

-- Deletes at most max_rows expired claims and returns their number. Concurrent calls delete nothing.
CREATE FUNCTION {once_reap}(max_rows integer) RETURNS integer
    LANGUAGE plpgsql AS $$
DECLARE
    cutoff timestamptz := clock_timestamp();
    reaped integer;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('outbox-relay reaper of claims in ' || {schema_literal}, 0)) THEN
        RETURN 0;
    END IF;
    DELETE FROM {once_key} AS k
    WHERE k.ctid = ANY (ARRAY(
              SELECT o.ctid FROM {once_key} AS o
              WHERE o.expires_at <= cutoff
              ORDER BY o.expires_at
              LIMIT $1))
      AND k.expires_at <= cutoff; -- the key can be claimed again in the meantime
    GET DIAGNOSTICS reaped = ROW_COUNT;
    RETURN reaped;
END $$;
