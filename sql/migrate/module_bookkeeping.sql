-- Create the schema only if it is missing: CREATE SCHEMA IF NOT EXISTS always needs CREATE on the database.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = {schema_literal}) THEN
        CREATE SCHEMA {schema};
    END IF;
END $$;

-- An existing table must not be one that another role has prepared.
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_roles AS r ON r.oid = c.relowner
               LEFT JOIN pg_catalog.pg_class AS o ON o.oid = pg_catalog.to_regclass({outbox_literal})
               WHERE c.oid = pg_catalog.to_regclass({pg_outbox_migration_literal})
                 AND (c.relkind <> 'r' OR c.relhastriggers OR c.relhasrules
                      OR NOT (r.rolsuper OR r.rolname = current_user
                              OR coalesce(pg_catalog.pg_has_role(r.oid, o.relowner, 'MEMBER'), false)))) THEN
        RAISE EXCEPTION 'the table % exists, but was created by another role or runs code of its own',
                        {pg_outbox_migration_literal};
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
