-- What applications must agree on with the relay. Each relay records its own settings here when it starts, but never reads
-- them to publish: `outbox-relay doctor` and pg-outbox compare them with theirs.
CREATE TABLE {setting} (
    singleton      boolean     PRIMARY KEY DEFAULT true CHECK (singleton),
    topic_template text        NOT NULL,                                      -- [outbox] topic
    recorded_at    timestamptz NOT NULL DEFAULT now(),                        -- when a relay first started with this template
    role           text        NOT NULL DEFAULT current_user,
    application    text        NOT NULL DEFAULT current_setting('application_name'),
    address        inet                 DEFAULT inet_client_addr()            -- NULL for a Unix socket; a pooler hides the real one
);

-- The topic template of the relay; NULL if no relay has recorded one. With SECURITY DEFINER, applications need no privilege on
-- the table.
CREATE FUNCTION {template}() RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT topic_template FROM {setting}
$$;
