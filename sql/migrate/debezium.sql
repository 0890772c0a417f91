BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = '3s';
LOCK TABLE {from} IN ACCESS EXCLUSIVE MODE;
INSERT INTO {from} (id, aggregatetype, aggregateid, type, payload)
VALUES (gen_random_uuid(), 'moved', 'moved', 'Moved', '{}');

ALTER TABLE {from} RENAME TO {before};
CREATE VIEW {from} AS
SELECT id, aggregatetype, aggregateid, type, payload FROM {before_with_schema} WHERE false;

CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.id := coalesce(NEW.id, gen_random_uuid());
    INSERT INTO {to} ({event_id_column}, {aggregate_type_column}, {aggregate_id_column}, {event_type_column}, {payload_column}, {headers_column})
    VALUES (NEW.id, NEW.aggregatetype, NEW.aggregateid, NEW.type, NEW.payload::json,
            jsonb_build_object('id', NEW.id, 'eventType', NEW.type));
    RETURN NEW;
END $$;
CREATE TRIGGER to_outbox INSTEAD OF INSERT ON {from} FOR EACH ROW EXECUTE FUNCTION {function}();
GRANT INSERT, DELETE, SELECT ON {from} TO {writer};
COMMIT;
