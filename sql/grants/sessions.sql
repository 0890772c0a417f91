-- Members of pg_read_all_stats can see which relays are connected and what holds vacuum back, but also the statements of
-- all sessions of the server. Without it, `status` shows less.
DO $$ BEGIN
    GRANT pg_read_all_stats TO {operator}, {monitor};
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'a superuser has to run: GRANT pg_read_all_stats TO %, %;',
        pg_catalog.quote_ident({operator_literal}), pg_catalog.quote_ident({monitor_literal});
END $$;
