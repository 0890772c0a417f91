-- A mark belongs to a service, and no other service sees it or can make it. The marks of earlier versions have no owner:
-- every service sees them until they are reaped.
ALTER TABLE {processed_message} ADD COLUMN owner text COLLATE "C" NOT NULL DEFAULT '';
DO $$ BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    EXECUTE format(
        'ALTER TABLE %1$I.processed_message DROP CONSTRAINT %2$I, ADD PRIMARY KEY (subscriber, event_id, owner)',
        {schema_literal}::text,
        (SELECT k.conname FROM pg_constraint AS k
         JOIN pg_class AS c ON c.oid = k.conrelid
         JOIN pg_namespace AS s ON s.oid = c.relnamespace
         WHERE s.nspname = {schema_literal} AND c.relname = 'processed_message' AND k.contype = 'p'));
END $$;

-- Services that use several logins, for example logins that a vault creates. A login that is a member of a role in this table
-- acts as that role.
CREATE TABLE {inbox_service} (
    service text COLLATE "C" PRIMARY KEY                  -- the name of a role
);

-- The owner of the marks that this session makes: the service of the role that logged in, or that role itself. The
-- other functions call it only if there are services, because most databases have none.
CREATE FUNCTION {inbox_owner}() RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    services text[];
BEGIN
    -- A superuser counts as a member of every role.
    services := ARRAY(
        SELECT s.service FROM {inbox_service} AS s
        JOIN pg_roles AS r ON r.rolname = s.service
        JOIN pg_roles AS login ON login.rolname = session_user
        WHERE NOT login.rolsuper AND pg_has_role(login.oid, r.oid, 'MEMBER')
        ORDER BY s.service <> session_user, s.service);
    IF cardinality(services) > 1 AND services[1] <> session_user THEN
        RAISE EXCEPTION 'the role % is a member of several services: %', session_user, array_to_string(services, ', ')
            USING ERRCODE = 'invalid_authorization_specification', HINT = 'Make it a member of one of them';
    END IF;
    RETURN coalesce(services[1], session_user);
END $$;

-- SECURITY DEFINER, because applications have no privilege on the tables.
CREATE OR REPLACE FUNCTION {inbox_receive}(subscriber text, event_id text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO {processed_message} (subscriber, event_id, owner)
    SELECT $1, $2, CASE WHEN EXISTS (SELECT FROM {inbox_service}) THEN {inbox_owner}() ELSE session_user END
    WHERE NOT EXISTS (SELECT FROM {processed_message} AS m
                      WHERE m.subscriber = $1 AND m.event_id = $2 AND m.owner = '')
    ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION {inbox_receive_many}(subscriber text, event_ids text[]) RETURNS boolean[]
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    mine     text := {inbox_owner}();
    receipts boolean[];
BEGIN
    IF $2 IS NULL THEN
        RAISE EXCEPTION 'the event ids must not be NULL' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    WITH given AS MATERIALIZED (
        SELECT id COLLATE "C" AS id, place,
               row_number() OVER (PARTITION BY id COLLATE "C" ORDER BY place) = 1 AS leads
        FROM unnest($2) WITH ORDINALITY AS g (id, place)
    ), marked AS (
        INSERT INTO {processed_message} AS m (subscriber, event_id, owner)
        SELECT $1, g.id, mine FROM given AS g
        WHERE g.leads AND NOT EXISTS (SELECT FROM {processed_message} AS k
                                      WHERE k.subscriber = $1 AND k.event_id = g.id AND k.owner = '')
        ORDER BY g.id COLLATE "C"
        ON CONFLICT DO NOTHING
        RETURNING m.event_id AS id
    )
    -- IN in the select list always uses a hash table, even if the planner's row estimate is wrong.
    SELECT coalesce(array_agg(g.leads AND g.id IN (SELECT m.id FROM marked AS m) ORDER BY g.place), ARRAY[]::boolean[])
    INTO receipts
    FROM given AS g;
    RETURN receipts;
END $$;

-- Deletes at most max_rows marks of all services that are older than the retention, and returns their number. Concurrent calls
-- skip each other's rows.
CREATE OR REPLACE FUNCTION {inbox_reap}(retention interval, max_rows integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    cutoff timestamptz := clock_timestamp() - $1;
    reaped integer;
BEGIN
    IF $1 IS NULL OR $1 < interval '0' OR $2 IS NULL OR $2 < 1 THEN
        RAISE EXCEPTION 'the retention must not be negative, and max_rows must be positive'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    DELETE FROM {processed_message} AS m
    WHERE m.ctid = ANY (ARRAY(
              SELECT o.ctid FROM {processed_message} AS o
              WHERE o.processed_at < cutoff
              ORDER BY o.processed_at
              LIMIT $2
              FOR UPDATE SKIP LOCKED))
      AND m.processed_at < cutoff; -- a ctid can belong to a new row in the meantime
    GET DIAGNOSTICS reaped = ROW_COUNT;
    RETURN reaped;
END $$;

-- Nobody except the owner has privileges on the tables, whatever the default privileges are. Roles that could insert rows or
-- reap before this migration can still call the functions for it.
DO $$
DECLARE
    tables  text[] := ARRAY['processed_message', 'inbox_service'];
    called  text[] := ARRAY['inbox_receive', 'inbox_receive_many'];
    reaping text[] := ARRAY['inbox_reap'];
    hidden  text[] := ARRAY['inbox_owner'];
    names   text;
    known   record;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    names := (SELECT string_agg(format('%I.%I', {schema_literal}::text, f), ', ') FROM unnest(called || reaping || hidden) AS f);
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', names);
    EXECUTE (SELECT format('REVOKE ALL ON %s FROM PUBLIC', string_agg(
                 format('%I.%I', {schema_literal}::text, t), ', ')) FROM unnest(tables) AS t);
    FOR known IN
        SELECT r.rolname, bool_or(a.privilege_type = 'INSERT') AS writes,
               bool_or(a.privilege_type = 'DELETE') AS deletes
        FROM pg_namespace AS s
        CROSS JOIN LATERAL (
            SELECT c.relowner AS owner, x.* FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS x
            WHERE c.relnamespace = s.oid AND c.relname = ANY (tables)
            UNION ALL
            SELECT c.relowner, x.* FROM pg_class AS c
            JOIN pg_attribute AS t ON t.attrelid = c.oid CROSS JOIN LATERAL aclexplode(t.attacl) AS x
            WHERE c.relnamespace = s.oid AND c.relname = ANY (tables)
            UNION ALL
            SELECT p.proowner, x.* FROM pg_proc AS p CROSS JOIN LATERAL aclexplode(p.proacl) AS x
            WHERE p.pronamespace = s.oid AND p.proname = ANY (called || reaping || hidden)
        ) AS a
        JOIN pg_roles AS r ON r.oid = a.grantee AND r.oid <> a.owner
        WHERE s.nspname = {schema_literal}
        GROUP BY r.rolname
    LOOP
        EXECUTE (SELECT format('REVOKE ALL ON %s FROM %I', string_agg(
                     format('%I.%I', {schema_literal}::text, t), ', '), known.rolname)
                 FROM unnest(tables) AS t);
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM %I', names, known.rolname);
        IF known.writes OR known.deletes THEN
            EXECUTE (SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I', string_agg(
                         format('%I.%I', {schema_literal}::text, f), ', '), known.rolname)
                     FROM unnest(CASE WHEN known.writes THEN called ELSE reaping END) AS f);
        END IF;
    END LOOP;
END $$;
