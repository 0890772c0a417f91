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
    min_relay  text        NOT NULL DEFAULT '0.1.0', -- the lowest version of the relay that can run on the result
    PRIMARY KEY (module, number)
);

-- A table that was created without the column. If the column exists, nothing is locked.
DO $$ BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_attribute
        WHERE attrelid = {pg_outbox_migration_literal}::pg_catalog.regclass AND attname = 'min_relay'
    ) THEN
        ALTER TABLE {pg_outbox_migration} ADD COLUMN min_relay text NOT NULL DEFAULT '0.1.0';
    END IF;
END $$;
