-- The roles of the outbox {outbox}, each with exactly the privileges that it needs.
--
-- Apply it after the migrations and after each upgrade, in one transaction, as a superuser or as an owner of the tables
-- who may create roles:  psql -v ON_ERROR_STOP=1 --single-transaction -f this-file.sql
-- You can apply it repeatedly. It revokes all other privileges of these roles on these tables.
--
--   {relay}: `outbox-relay run` connects as this role, which may log in. Set a password with \password, or
--       configure another method in pg_hba.conf.
--   {operator}: a group for operators, who use status, dead-letters, blocked-keys, replay, verify and
--       reap.
--   {monitor}: a group for monitoring, with read access for status.
--   {writer}: a group for applications, which insert events.
--   {inbox}, {idempotency}, {once}: groups for applications that use an optional module. They exist if it is
--       installed.
--
-- People and applications keep their own roles and become members:  GRANT {writer} TO shop;
--
-- None of these roles can read other tables, unless PUBLIC can. Before PostgreSQL 15, every role may create tables and
-- functions in the schema public, and thereby run code as another role that uses them by chance. To revoke this:  REVOKE CREATE ON SCHEMA public FROM PUBLIC;

DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {relay_literal}) THEN
        CREATE ROLE {relay} LOGIN;
    END IF;
END $$;

DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {operator_literal}) THEN
        CREATE ROLE {operator} NOLOGIN;
    END IF;
END $$;

DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {monitor_literal}) THEN
        CREATE ROLE {monitor} NOLOGIN;
    END IF;
END $$;

DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {writer_literal}) THEN
        CREATE ROLE {writer} NOLOGIN;
    END IF;
END $$;

-- Revoke all earlier privileges.
REVOKE ALL ON SCHEMA {schema} FROM {relay}, {operator}, {monitor}, {writer};
REVOKE ALL ON {outbox}, {lane}, {dead_letter}, {hold}, {blocked_key}, {pause}, {act}, {hold_version}, {setting},
    {reaper}, {migration} FROM {relay}, {operator}, {monitor}, {writer};
REVOKE ALL ON FUNCTION {enqueue}, {template}, {record_act} FROM {relay}, {operator}, {monitor}, {writer};

-- By default, every role may connect. Grant it explicitly in case that was revoked.
DO $$ BEGIN
    EXECUTE pg_catalog.format('GRANT CONNECT ON DATABASE %I TO %I, %I, %I', pg_catalog.current_database(),
                              {relay_literal}, {operator_literal}, {monitor_literal});
END $$;

-- The relay reads events, sets sent_at, deletes sent events, and writes dead letters, holds and blocked keys. When it starts,
-- it records its topic template.
{relay_grants}

-- Operators can read everything and change dead letters, blocked keys, held topics and old rows. They cannot change events,
-- and cannot write the history: triggers record what they do.
{operator_grants}

-- Monitoring cannot read payloads or headers.
{monitor_grants}

-- Applications can insert events and read their IDs, for INSERT ... RETURNING. They cannot read anything else of an event, or
-- set id, created_at or sent_at. They can read the relay's topic template.
{writer_grants}

{topic_grants}

-- The checks compare the sequence of the IDs with the highest ID. Inserts use it and the sequences in the defaults of all columns. An
-- identity column needs no privilege.
DO $$
DECLARE
    ids text = pg_catalog.pg_get_serial_sequence({outbox_literal}, {id_literal});
BEGIN
    IF ids IS NOT NULL THEN
        EXECUTE pg_catalog.format('GRANT SELECT ON SEQUENCE %s TO %I, %I, %I', ids, {relay_literal}, {operator_literal},
                                  {monitor_literal});
    END IF;
    FOR ids IN
        SELECT ids
        FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = {outbox_literal}::regclass AND a.attname = {id_literal} AND a.attidentity = '' AND ids IS NOT NULL
        UNION
        SELECT c.oid::regclass::text
        FROM pg_catalog.pg_attrdef AS f
        JOIN pg_catalog.pg_depend AS d ON d.classid = 'pg_catalog.pg_attrdef'::regclass AND d.objid = f.oid
                                      AND d.refclassid = 'pg_catalog.pg_class'::regclass
        JOIN pg_catalog.pg_class AS c ON c.oid = d.refobjid AND c.relkind = 'S'
        WHERE f.adrelid = {outbox_literal}::regclass AND pg_catalog.pg_has_role(c.relowner, 'USAGE')
    LOOP
        EXECUTE pg_catalog.format('GRANT USAGE ON SEQUENCE %s TO %I, %I', ids, {operator_literal}, {writer_literal});
    END LOOP;
END $$;

-- The installed optional modules. Apply this again after `migrate --with`. Applications call their functions, and use only the
-- rows of their own service. The relay and operators can delete old rows, but not read requests or responses.

{module_grants}

{sessions}
