-- Create the schema only if it is missing: CREATE SCHEMA IF NOT EXISTS always needs CREATE on the database.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = {schema_literal}) THEN
        CREATE SCHEMA {schema};
    END IF;
END $$;

-- The applied migrations of the optional modules in this schema.
CREATE TABLE IF NOT EXISTS {pg_outbox_migration} (
    module     text        NOT NULL,
    number     integer     NOT NULL,
    name       text        NOT NULL,
    checksum   text        NOT NULL, -- SHA-256 of the migration's text, with placeholders for the names
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (module, number)
);
