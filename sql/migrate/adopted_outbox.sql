-- One row for each lane. A relay claims a lane with FOR UPDATE SKIP LOCKED.
CREATE TABLE {lane} (
    lane smallint PRIMARY KEY CHECK (lane BETWEEN 0 AND 63)
);
INSERT INTO {lane} SELECT generate_series(0, 63);

-- Complete copies of the events that Kafka permanently rejected, with the reason.
CREATE TABLE {dead_letter} (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    outbox_id      bigint      NOT NULL,
    event_id       uuid        NOT NULL,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    event_type     text        NOT NULL,
    payload        bytea,                                                     -- the bytes of the payload, for every column type
    headers        jsonb,
    created_at     timestamptz NOT NULL,
    topic          text        NOT NULL,
    row_topic      text,                                                      -- the optional column topic of the event
    reason         text        NOT NULL,                                      -- a code to filter by, such as record-too-large
    error          text        NOT NULL,                                      -- the message for an operator
    rejected_at    timestamptz NOT NULL DEFAULT now(),
    requeued_at    timestamptz
);

-- Topics that cannot be written at the moment. Their events stay in the outbox, and all other events are published.
CREATE TABLE {hold} (
    topic        text PRIMARY KEY,
    aggregate_id text,                                                        -- the key whose event failed; its first event is the probe
    reason       text        NOT NULL,
    error        text        NOT NULL,
    held_at      timestamptz NOT NULL DEFAULT now(),
    probes       integer     NOT NULL DEFAULT 0,
    probe_at     timestamptz NOT NULL DEFAULT now()                           -- when a relay may probe the topic next
);

-- Keys whose first unsent event Kafka permanently rejected, with on_rejected = "block-key". Their events stay in the outbox
-- until an operator decides, and all other events are published.
CREATE TABLE {blocked_key} (
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    outbox_id      bigint      PRIMARY KEY,                                   -- the event that was rejected
    event_id       uuid        NOT NULL,
    topic          text        NOT NULL,
    reason         text        NOT NULL,
    error          text        NOT NULL,
    blocked_at     timestamptz NOT NULL DEFAULT now()
);
-- A key can be too large for an index, so the index contains its hash.
CREATE INDEX ON {blocked_key} (hashtext(aggregate_id));

-- What operators have paused: a topic, a key, or everything if both are NULL. The paused events stay in the outbox until
-- an operator resumes them. All other events are published. Events that were claimed before the pause are still published.
CREATE TABLE {pause} (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic          text,
    aggregate_type text,                                                      -- of the key
    aggregate_id   text,
    reason         text,                                                      -- given by the operator
    role           text        NOT NULL DEFAULT current_user,
    paused_at      timestamptz NOT NULL DEFAULT now(),
    CHECK (topic IS NULL OR aggregate_id IS NULL),
    CHECK ((aggregate_type IS NULL) = (aggregate_id IS NULL))
);
-- Each claim checks whether everything is paused, which topics are paused and whether any key is paused.
CREATE INDEX ON {pause} (topic) WHERE aggregate_id IS NULL;
CREATE INDEX ON {pause} (hashtext(aggregate_id)) WHERE aggregate_id IS NOT NULL;

-- The actions of operators: on dead letters and blocked keys, pauses and resumes. Each one is recorded in the transaction
-- of the action, without payload and key. The reaper never deletes them.
CREATE TABLE {act} (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             timestamptz NOT NULL DEFAULT now(),
    role           text        NOT NULL DEFAULT current_user,
    application    text        NOT NULL DEFAULT current_setting('application_name'),
    address        inet                 DEFAULT inet_client_addr(),           -- NULL for a Unix socket; a pooler hides the real one
    act            text        NOT NULL,                                      -- requeue, discard, retry, dead-letter, lift; pause, resume
    dead_letter_id bigint,                                                    -- NULL if there is no dead letter
    outbox_id      bigint,                                                    -- the row that Kafka rejected; NULL for pause and resume
    event_id       uuid,                                                      -- NULL for pause and resume
    pause_id       bigint,                                                    -- NULL for all other acts
    aggregate_type text,                                                      -- of the event or the paused key
    topic          text,                                                      -- of the event, or the paused topic
    reason         text,                                                      -- of the rejection or the pause
    CHECK (pause_id IS NOT NULL OR num_nulls(outbox_id, event_id, aggregate_type, topic, reason) = 0)
);

-- Counts the changes of holds, blocked keys and pauses. A claim reads it in the same snapshot as the rows.
CREATE TABLE {hold_version} (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    version   bigint  NOT NULL DEFAULT 0,                                     -- all changes
    removals  bigint  NOT NULL DEFAULT 0                                      -- changes that can make rows claimable again
);
INSERT INTO {hold_version} DEFAULT VALUES;

-- A trigger counts, so changes made in psql count too. With SECURITY DEFINER, no role needs the privilege to update the
-- version. The search_path is therefore fixed, and PUBLIC cannot attach the function to other tables.
CREATE FUNCTION {hold_changed}() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE {hold_version} SET version = version + 1, removals = removals + (TG_OP <> 'INSERT')::integer;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION {hold_changed}() FROM PUBLIC;

-- The columns of the probe change often and do not affect the claim.
CREATE TRIGGER hold_changed AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF topic ON {hold}
    FOR EACH STATEMENT EXECUTE FUNCTION {hold_changed}();
CREATE TRIGGER hold_changed AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF aggregate_type, aggregate_id ON {blocked_key}
    FOR EACH STATEMENT EXECUTE FUNCTION {hold_changed}();
CREATE TRIGGER hold_changed AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF topic, aggregate_type, aggregate_id ON {pause}
    FOR EACH STATEMENT EXECUTE FUNCTION {hold_changed}();

-- Inserts an event: SELECT {enqueue}('order', '42', 'OrderPlaced', '{"total": 12}'). If event_id is NULL, it is generated,
-- because many drivers cannot omit an argument. The arguments have the names of the columns, so the body uses $n.
-- RETURNING would need the privilege SELECT, so the body has none.
CREATE FUNCTION {enqueue}(
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    payload        {payload_type}  DEFAULT NULL,
    headers        jsonb DEFAULT NULL,
    event_id       uuid  DEFAULT NULL
) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    WITH event AS MATERIALIZED (
        SELECT coalesce($6, pg_catalog.gen_random_uuid()) AS id
    ), inserted AS (
        INSERT INTO {outbox} ({aggregate_type_column}, {aggregate_id_column}, {event_type_column}, {payload_column}, {headers_column}, {event_id_column})
        SELECT $1, $2, $3, $4, $5, event.id FROM event
    )
    SELECT event.id FROM event
$$;
