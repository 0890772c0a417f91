-- Returns the settings of autovacuum for the outbox, where those of the table override those of the server, its number of rows, the
-- age of the oldest transaction that is not frozen in any database, and the upper limit of the threshold: NULL before PostgreSQL 18,
-- and negative if there is none. PostgreSQL ignores a database whose DROP was interrupted.
-- $1: the quoted name of the outbox
SELECT current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean,
       coalesce((SELECT option_value FROM pg_options_to_table(c.reloptions)
                 WHERE option_name = 'autovacuum_enabled')::boolean, true),
       coalesce((SELECT option_value FROM pg_options_to_table(c.reloptions)
                 WHERE option_name = 'autovacuum_vacuum_threshold'),
                current_setting('autovacuum_vacuum_threshold'))::float8,
       coalesce((SELECT option_value FROM pg_options_to_table(c.reloptions)
                 WHERE option_name = 'autovacuum_vacuum_scale_factor'),
                current_setting('autovacuum_vacuum_scale_factor'))::float8,
       greatest(c.reltuples, 0)::float8,
       (SELECT max(age(datfrozenxid)) FROM pg_database WHERE datconnlimit <> -2),
       coalesce((SELECT option_value FROM pg_options_to_table(c.reloptions)
                 WHERE option_name = 'autovacuum_vacuum_max_threshold'),
                current_setting('autovacuum_vacuum_max_threshold', true))::float8
FROM pg_class AS c
WHERE c.oid = $1::text::regclass;
