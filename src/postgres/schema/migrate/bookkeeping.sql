-- The schema, only if it is missing: CREATE SCHEMA IF NOT EXISTS asks for CREATE on the database in any case.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = {schema_literal}) THEN
        CREATE SCHEMA {schema};
    END IF;
END $$;

-- Which migrations were applied, and from which text.
CREATE TABLE IF NOT EXISTS {migration} (
    number     integer     PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL, -- sha256 of the migration's text, before the table names were filled in
    applied_at timestamptz NOT NULL DEFAULT now()
);
