-- The outbox: the application inserts here, in the transaction of its business change.
CREATE TABLE {outbox} (
    id             bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY, -- order inside a key; another CACHE would break it
    event_id       uuid        NOT NULL DEFAULT gen_random_uuid(),            -- identity of the event for consumers
    aggregate_type text        NOT NULL,                                      -- routes: the topic, by default events.<aggregate_type>
    aggregate_id   text        NOT NULL,                                      -- Kafka key
    event_type     text        NOT NULL,
    payload        json,                                                      -- stored as written; NULL = tombstone
    headers        jsonb,                                                     -- flat object of strings
    created_at     timestamptz NOT NULL DEFAULT now(),
    sent_at        timestamptz                                                -- set by the relay after Kafka acknowledged the row
);

-- The lane is an expression of the key. Not %, which is negative for half of the keys; not abs, which can
-- fail inside the application's insert.
CREATE INDEX {pending_index} ON {outbox} ((hashtext(aggregate_id) & 63), id) WHERE sent_at IS NULL;

-- One row a lane, locked FOR UPDATE SKIP LOCKED to claim it.
CREATE TABLE {lane} (
    lane smallint PRIMARY KEY CHECK (lane BETWEEN 0 AND 63)
);
INSERT INTO {lane} SELECT generate_series(0, 63);

-- Events that Kafka refused for good, whole, with the reason.
CREATE TABLE {dead_letter} (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    outbox_id      bigint      NOT NULL,
    event_id       uuid        NOT NULL,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    event_type     text        NOT NULL,
    payload        bytea,                                                     -- the bytes of the payload, whatever the outbox column's type
    headers        jsonb,
    created_at     timestamptz NOT NULL,
    topic          text        NOT NULL,
    reason         text        NOT NULL,                                      -- a word to filter by, e.g. record-too-large
    error          text        NOT NULL,                                      -- a sentence for a person
    rejected_at    timestamptz NOT NULL DEFAULT now(),
    requeued_at    timestamptz
);

-- Topics that cannot be written to now: their rows wait here in the outbox, all others flow.
CREATE TABLE {hold} (
    topic        text PRIMARY KEY,
    aggregate_id text,                                                        -- the key that met the failure: probed with its first row
    reason       text        NOT NULL,
    error        text        NOT NULL,
    held_at      timestamptz NOT NULL DEFAULT now(),
    probes       integer     NOT NULL DEFAULT 0,
    probe_at     timestamptz NOT NULL DEFAULT now()                           -- when a relay may next try whether the topic works again
);

-- Keys whose first unsent event Kafka refused for good, under on_rejected = "block-key": their events wait here in the
-- outbox until somebody decides, all others flow.
CREATE TABLE {blocked_key} (
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    outbox_id      bigint      PRIMARY KEY,                                   -- the event that was refused
    event_id       uuid        NOT NULL,
    topic          text        NOT NULL,
    reason         text        NOT NULL,
    error          text        NOT NULL,
    blocked_at     timestamptz NOT NULL DEFAULT now()
);
-- By a hash: what makes an event too large may be its key.
CREATE INDEX ON {blocked_key} (hashtext(aggregate_id));

-- What operators have paused: a topic, a key, or, if neither is named, everything. The events wait here in the outbox
-- until they are resumed, all others flow. What was claimed before the pause is finished.
CREATE TABLE {pause} (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic          text,
    aggregate_type text,                                                      -- of the key
    aggregate_id   text,
    reason         text,                                                      -- in the words of the operator
    role           text        NOT NULL DEFAULT current_user,
    paused_at      timestamptz NOT NULL DEFAULT now(),
    CHECK (topic IS NULL OR aggregate_id IS NULL),
    CHECK ((aggregate_type IS NULL) = (aggregate_id IS NULL))
);
-- Each claim asks whether everything is paused, which topics are, and whether any key is.
CREATE INDEX ON {pause} (topic) WHERE aggregate_id IS NULL;
CREATE INDEX ON {pause} (hashtext(aggregate_id)) WHERE aggregate_id IS NOT NULL;

-- What operators did to dead letters and blocked keys, and what they paused and resumed, recorded in the transaction of
-- the act. No payload, no key. It is not reaped: an act on an event outlives the event.
CREATE TABLE {act} (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             timestamptz NOT NULL DEFAULT now(),
    role           text        NOT NULL DEFAULT current_user,
    application    text        NOT NULL DEFAULT current_setting('application_name'),
    address        inet                 DEFAULT inet_client_addr(),           -- NULL: over a socket; a pooler shows its own
    act            text        NOT NULL,                                      -- requeue, discard, retry, dead-letter, lift; pause, resume
    dead_letter_id bigint,                                                    -- NULL if the event is none
    outbox_id      bigint,                                                    -- the row that Kafka refused; NULL in the last two acts
    event_id       uuid,                                                      -- NULL in the last two acts
    pause_id       bigint,                                                    -- NULL in the other acts
    aggregate_type text,                                                      -- of the event, or of the key that is paused
    topic          text,                                                      -- of the event, or the one that is paused
    reason         text,                                                      -- for which it was refused, or paused
    CHECK (pause_id IS NOT NULL OR num_nulls(outbox_id, event_id, aggregate_type, topic, reason) = 0)
);

-- Counts the changes of the set of holds, blocked keys and pauses. The claim reads it in the snapshot in which it reads the rows.
CREATE TABLE {hold_version} (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    version   bigint  NOT NULL DEFAULT 0,                                     -- every change
    removals  bigint  NOT NULL DEFAULT 0                                      -- changes after which rows may be readable again
);
INSERT INTO {hold_version} DEFAULT VALUES;

-- A trigger and not the relay's own statements, so that what is removed by hand in psql counts too.
-- SECURITY DEFINER, so that nobody needs the right to set the version; hence the pinned search_path, and no
-- right for the public to attach the function to tables of its own.
CREATE FUNCTION {hold_changed}() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE {hold_version} SET version = version + 1, removals = removals + (TG_OP <> 'INSERT')::integer;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION {hold_changed}() FROM PUBLIC;

-- The probe's own columns change often and change nothing for the claim.
CREATE TRIGGER hold_changed AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF topic ON {hold}
    FOR EACH STATEMENT EXECUTE FUNCTION {hold_changed}();
CREATE TRIGGER hold_changed AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF aggregate_type, aggregate_id ON {blocked_key}
    FOR EACH STATEMENT EXECUTE FUNCTION {hold_changed}();
CREATE TRIGGER hold_changed AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF topic, aggregate_type, aggregate_id ON {pause}
    FOR EACH STATEMENT EXECUTE FUNCTION {hold_changed}();

-- Inserts an event from any language: SELECT {enqueue}('order', '42', 'OrderPlaced', '{"total": 12}').
-- The body uses $n, because the arguments are named like the columns; it has no RETURNING, which would ask
-- writers for SELECT. An event_id of NULL is a new one: many drivers cannot leave an argument out.
CREATE FUNCTION {enqueue}(
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    payload        json  DEFAULT NULL,
    headers        jsonb DEFAULT NULL,
    event_id       uuid  DEFAULT NULL
) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    WITH event AS MATERIALIZED (
        SELECT coalesce($6, pg_catalog.gen_random_uuid()) AS id
    ), inserted AS (
        INSERT INTO {outbox} (aggregate_type, aggregate_id, event_type, payload, headers, event_id)
        SELECT $1, $2, $3, $4, $5, event.id FROM event
    )
    SELECT event.id FROM event
$$;
