-- The events that each subscriber has processed. A consumer marks an event in the transaction of its effect, so both are
-- committed or neither is. The database does not need an outbox.
CREATE TABLE {processed_message} (
    subscriber   text COLLATE "C" NOT NULL,               -- for example a consumer group or a part of a service
    event_id     text COLLATE "C" NOT NULL,               -- the record header event_id or any other id
    processed_at timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (subscriber, event_id),
    CONSTRAINT subscriber_has_1_to_255_bytes CHECK (octet_length(subscriber) BETWEEN 1 AND 255),
    CONSTRAINT event_id_has_1_to_255_bytes CHECK (octet_length(event_id) BETWEEN 1 AND 255)
);
CREATE INDEX ON {processed_message} (processed_at);      -- for the reaper

-- Marks an event. Returns true the first time and false for a duplicate. Call it before the effect, in the same
-- transaction. If another open transaction has marked the event, it waits until that one ends, and returns false after a
-- commit and true after a rollback. In REPEATABLE READ and SERIALIZABLE, it fails with 40001 if the duplicate was committed
-- after this transaction's snapshot. Then retry the transaction.
CREATE FUNCTION {inbox_receive}(subscriber text, event_id text) RETURNS boolean
    LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {processed_message} (subscriber, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

-- The same for many events. The results have the order of the input. If an id is repeated, only the first one can be true.
-- Marks are inserted in the order of the ids, so transactions with one call each never deadlock.
CREATE FUNCTION {inbox_receive_many}(subscriber text, event_ids text[]) RETURNS boolean[]
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    receipts boolean[];
BEGIN
    WITH given AS MATERIALIZED (
        SELECT id COLLATE "C" AS id, place,
               row_number() OVER (PARTITION BY id COLLATE "C" ORDER BY place) = 1 AS leads
        FROM unnest($2) WITH ORDINALITY AS g (id, place)
    ), marked AS (
        INSERT INTO {processed_message} AS m (subscriber, event_id)
        SELECT $1, g.id FROM given AS g WHERE g.leads ORDER BY g.id COLLATE "C"
        ON CONFLICT DO NOTHING
        RETURNING m.event_id AS id
    )
    -- IN in the select list always uses a hash table, even if the planner's row estimate is wrong.
    SELECT coalesce(array_agg(g.leads AND g.id IN (SELECT m.id FROM marked AS m) ORDER BY g.place), ARRAY[]::boolean[])
    INTO receipts
    FROM given AS g;
    RETURN receipts;
END $$;

-- Deletes at most max_rows marks that are older than the retention, and returns their number. Concurrent calls delete
-- nothing. The retention must exceed the retention of the topic plus the longest replay. Otherwise a late duplicate is
-- processed again.
CREATE FUNCTION {inbox_reap}(retention interval, max_rows integer) RETURNS integer
    LANGUAGE plpgsql AS $$
DECLARE
    cutoff timestamptz := clock_timestamp() - $1;
    reaped integer;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('outbox-relay reaper of the inbox in ' || {schema_literal}, 0)) THEN
        RETURN 0;
    END IF;
    DELETE FROM {processed_message} AS m
    WHERE m.ctid = ANY (ARRAY(
              SELECT o.ctid FROM {processed_message} AS o
              WHERE o.processed_at < cutoff
              ORDER BY o.processed_at
              LIMIT $2))
      AND m.processed_at < cutoff; -- a ctid can belong to a new row in the meantime
    GET DIAGNOSTICS reaped = ROW_COUNT;
    RETURN reaped;
END $$;
