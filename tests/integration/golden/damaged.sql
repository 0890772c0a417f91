-- What `doctor` finds.
ALTER TABLE app.outbox SET (autovacuum_enabled = off);
CREATE FUNCTION app.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END';
CREATE TRIGGER keep BEFORE UPDATE ON app.outbox FOR EACH ROW EXECUTE FUNCTION app.keep();
ALTER TABLE app.outbox ADD CONSTRAINT never_sent CHECK (sent_at IS NULL OR id < 1000000) NOT VALID;
CREATE INDEX ON app.outbox (event_type);
CREATE TABLE app.customer (id bigint);
GRANT SELECT ON app.customer TO "RELAY_ROLE";
GRANT UPDATE (payload) ON app.outbox TO "RELAY_ROLE";
GRANT CREATE ON SCHEMA app TO "RELAY_ROLE";
ALTER ROLE "RELAY_ROLE" CREATEDB;
ALTER ROLE "RELAY_ROLE" SET statement_timeout = '5s';
UPDATE app.outbox_setting SET topic_template = 'elsewhere.{aggregate_type}',
    recorded_at = '2020-02-02 02:02:02Z', role = 'carol';
UPDATE app.outbox_dead_letter
SET rejected_at = CASE WHEN outbox_id = 900 THEN now() ELSE '2020-02-02 02:09:00Z' END;
