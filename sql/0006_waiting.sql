-- The same as before, with three differences: each check runs at READ COMMITTED, whatever the default of the role, so that it
-- never conflicts with serializable transactions; JIT never compiles it; and what is outside of a check, where the search path is that
-- of the role, names each object with its schema.
CREATE OR REPLACE PROCEDURE {wait}(
    INOUT highest bigint,
    INOUT is_new  boolean,
    gaps          bigint[],
    basis         bigint,
    pause         double precision,
    every         double precision,
    at_most       double precision
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    ends pg_catalog.timestamptz;
    rest double precision;
BEGIN
    LOOP
        -- CALL or the rest has taken a snapshot, after which a transaction cannot change its isolation level.
        COMMIT;
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
        -- For this transaction. Without enable_seqscan, a plan that was made for an empty table could scan a large one. The
        -- penalty for the one-row table would make JIT compile the check.
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
                pg_catalog.set_config('lock_timeout', '1s', true),
                pg_catalog.set_config('enable_seqscan', 'off', true),
                pg_catalog.set_config('jit', 'off', true);
        ends := coalesce(ends, clock_timestamp() + make_interval(secs => at_most));
        is_new := highest IS NULL
            OR EXISTS (SELECT FROM {rows} o WHERE o.id > highest)
            OR cardinality(gaps) > 0 AND EXISTS (SELECT FROM {rows} o WHERE o.id = ANY (gaps))
            OR NOT EXISTS (
                SELECT FROM {hold_version} v
                WHERE (v.removals << 32) | pg_relation_filenode({outbox_literal}::regclass)::bigint = basis);
        EXIT WHEN is_new OR clock_timestamp() >= ends;
        rest := least(pause, every);
        pause := rest * 2;
        COMMIT;
        PERFORM pg_catalog.pg_sleep(rest);
    END LOOP;
    SELECT coalesce(max(o.id), '-9223372036854775808'::bigint) INTO highest FROM {rows} o;
END
$$;
