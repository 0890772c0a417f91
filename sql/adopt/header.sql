-- Turns {outbox} into an outbox. `outbox-relay migrate --adopt --apply` runs these statements, and repeats those that could
-- not get their lock in time. To run them yourself, connect as the owner of the table, not through a pooler in transaction mode:
--
--   psql -v ON_ERROR_STOP=1 -f this-file.sql
--
-- Do not run them in one transaction, because indexes are built concurrently. After an interruption, print them again.
SET search_path = pg_catalog, pg_temp;
SET statement_timeout = 0;
SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout';
SET lock_timeout = '1500ms';
SET default_transaction_isolation = 'read committed';
