-- An act also names the role that logged in, because SET ROLE changes the current one. NULL for earlier acts.
ALTER TABLE {act} ADD COLUMN login text;
ALTER TABLE {act} ALTER COLUMN login SET DEFAULT session_user;
-- A trigger records acts as the owner of the table. In it, current_user is the owner, so take the role that SET ROLE has set.
ALTER TABLE {act} ALTER COLUMN role SET DEFAULT coalesce(nullif(current_setting('role'), 'none'), session_user);
ALTER TABLE {pause} ALTER COLUMN role SET DEFAULT session_user;

-- A block that ends needs the dead letter of its event.
CREATE INDEX ON {dead_letter} (outbox_id);

-- Records what a statement has done to dead letters, blocked keys and pauses, whether a command or psql ran it. With SECURITY
-- DEFINER, no role needs the privilege to insert acts, so no role can record an act that has not happened.
CREATE FUNCTION {act_recorded}() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    CASE TG_ARGV[0]
    WHEN 'pause' THEN
        INSERT INTO {act} (act, pause_id, topic, aggregate_type, reason)
        SELECT 'pause', p.id, p.topic, p.aggregate_type, p.reason FROM begun AS p ORDER BY p.id;
    WHEN 'resume' THEN
        INSERT INTO {act} (act, pause_id, topic, aggregate_type, reason)
        SELECT 'resume', p.id, p.topic, p.aggregate_type, p.reason FROM ended AS p ORDER BY p.id;
    WHEN 'requeue' THEN
        INSERT INTO {act} (act, dead_letter_id, outbox_id, event_id, aggregate_type, topic, reason)
        SELECT 'requeue', d.id, d.outbox_id, d.event_id, d.aggregate_type, d.topic, d.reason
        FROM requeued AS d JOIN before AS e ON e.id = d.id
        WHERE d.requeued_at IS DISTINCT FROM e.requeued_at
        ORDER BY d.id;
    WHEN 'discard' THEN
        INSERT INTO {act} (act, dead_letter_id, outbox_id, event_id, aggregate_type, topic, reason)
        SELECT 'discard', d.id, d.outbox_id, d.event_id, d.aggregate_type, d.topic, d.reason
        FROM discarded AS d ORDER BY d.id;
    WHEN 'unblock' THEN
        INSERT INTO {act} (act, dead_letter_id, outbox_id, event_id, aggregate_type, topic, reason)
        SELECT CASE WHEN d.id IS NOT NULL THEN 'dead-letter'
                    WHEN EXISTS (SELECT FROM {outbox} AS o
                                 WHERE o.{id_column} = u.outbox_id AND o.{event_id_column} = u.event_id
                                   AND o.{sent_at_column} IS NULL) THEN 'retry'
                    ELSE 'lift' END,
               d.id, u.outbox_id, u.event_id, u.aggregate_type, u.topic, u.reason
        FROM lifted AS u
        CROSS JOIN LATERAL (
            -- The dead letter that this transaction has made of the event.
            SELECT max(l.id) AS id FROM {dead_letter} AS l
            WHERE l.outbox_id = u.outbox_id AND l.event_id = u.event_id AND l.rejected_at = now()
        ) AS d
        ORDER BY u.outbox_id;
    END CASE;
    RETURN NULL;
END $$;

CREATE TRIGGER pause_recorded AFTER INSERT ON {pause}
    REFERENCING NEW TABLE AS begun FOR EACH STATEMENT EXECUTE FUNCTION {act_recorded}('pause');
CREATE TRIGGER resume_recorded AFTER DELETE ON {pause}
    REFERENCING OLD TABLE AS ended FOR EACH STATEMENT EXECUTE FUNCTION {act_recorded}('resume');
CREATE TRIGGER requeue_recorded AFTER UPDATE ON {dead_letter}
    REFERENCING OLD TABLE AS before NEW TABLE AS requeued FOR EACH STATEMENT EXECUTE FUNCTION {act_recorded}('requeue');
CREATE TRIGGER discard_recorded AFTER DELETE ON {dead_letter}
    REFERENCING OLD TABLE AS discarded FOR EACH STATEMENT EXECUTE FUNCTION {act_recorded}('discard');
CREATE TRIGGER unblock_recorded AFTER DELETE ON {blocked_key}
    REFERENCING OLD TABLE AS lifted FOR EACH STATEMENT EXECUTE FUNCTION {act_recorded}('unblock');

-- Records replays, for `outbox-relay replay`. A trigger on the outbox would make every settlement more expensive. A replay is
-- recorded only if this transaction has set the event back to unsent. A copy to another topic is no change in the database.
CREATE FUNCTION {record_act}(
    act             text,
    ids             bigint[],
    event_ids       uuid[],
    aggregate_types text[],
    topics          text[],
    reason          text
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    recorded bigint;
BEGIN
    IF $1 IS NULL OR $1 NOT IN ('replay', 'copy') THEN
        RAISE EXCEPTION 'only replays and copies are recorded by this function' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO {act} (act, outbox_id, event_id, aggregate_type, topic, reason)
    SELECT $1, g.id, g.event_id, g.aggregate_type, g.topic, $6
    FROM unnest($2, $3, $4, $5) AS g (id, event_id, aggregate_type, topic)
    WHERE $1 = 'copy' OR EXISTS (
        SELECT FROM {outbox} AS o
        WHERE o.{id_column} = g.id AND o.{event_id_column} = g.event_id AND o.{sent_at_column} IS NULL
          AND o.xmin = pg_current_xact_id()::xid)
    ORDER BY g.id;
    GET DIAGNOSTICS recorded = ROW_COUNT;
    RETURN recorded;
END $$;

-- The reaper locks this row, so that one relay reaps at a time. Every role can take an advisory lock, and could stop the reaper.
CREATE TABLE {reaper} (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton)
);
INSERT INTO {reaper} DEFAULT VALUES;

-- By default, every role can execute a function. Roles that worked before this migration, whether they were printed or not, keep
-- what they need: to insert events, to publish and reap them, and to record replays.
REVOKE ALL ON FUNCTION {act_recorded}, {record_act}, {enqueue}, {template} FROM PUBLIC;
DO $$
DECLARE
    known record;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    FOR known IN
        SELECT DISTINCT r.rolname, needed.privilege
        FROM (VALUES
            ({outbox_literal}, 'INSERT', 'EXECUTE ON FUNCTION ' || {enqueue_literal} || ', ' || {template_literal}),
            ({outbox_literal}, 'DELETE', 'SELECT, UPDATE (singleton) ON ' || {reaper_literal}),
            ({act_literal}, 'INSERT', 'EXECUTE ON FUNCTION ' || {record_act_literal})
        ) AS needed (relation, given, privilege)
        JOIN pg_class AS c ON c.oid = needed.relation::regclass
        CROSS JOIN LATERAL (
            SELECT * FROM aclexplode(c.relacl)
            UNION ALL
            SELECT x.* FROM pg_attribute AS t CROSS JOIN LATERAL aclexplode(t.attacl) AS x WHERE t.attrelid = c.oid
        ) AS a
        JOIN pg_roles AS r ON r.oid = a.grantee AND r.oid <> c.relowner
        WHERE a.privilege_type = needed.given
    LOOP
        EXECUTE format('GRANT %s TO %I', known.privilege, known.rolname);
    END LOOP;
END $$;
