-- Waits until the outbox may have a new event: a row with an ID above `highest` or one of the IDs in `gaps`, or another basis
-- of the low-water marks. If `highest` is NULL, it does not wait. Returns whether there may be one, and the highest ID in the
-- outbox. The time between two checks doubles from `pause` up to `every`, and the wait ends after `at_most`, all in seconds.
--
-- A relay calls it while it has nothing to publish. A check costs about a tenth of a scan by the relay. Each one is a transaction
-- of its own, so that the wait keeps no lock and does not hold vacuum back.
CREATE PROCEDURE {wait}(
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
    ends timestamptz;
BEGIN
    LOOP
        -- For this transaction. Without the last one, a plan that was made for an empty table could scan a large one.
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog', true),
                pg_catalog.set_config('lock_timeout', '1s', true),
                pg_catalog.set_config('enable_seqscan', 'off', true);
        ends := coalesce(ends, clock_timestamp() + make_interval(secs => at_most));
        is_new := highest IS NULL
            OR EXISTS (SELECT FROM {rows} o WHERE o.id > highest)
            OR cardinality(gaps) > 0 AND EXISTS (SELECT FROM {rows} o WHERE o.id = ANY (gaps))
            OR NOT EXISTS (
                SELECT FROM {hold_version} v
                WHERE (v.removals << 32) | pg_relation_filenode({outbox_literal}::regclass)::bigint = basis);
        EXIT WHEN is_new OR clock_timestamp() >= ends;
        COMMIT;
        pause := least(pause, every);
        PERFORM pg_catalog.pg_sleep(pause);
        pause := pause * 2;
    END LOOP;
    SELECT coalesce(max(o.id), '-9223372036854775808'::bigint) INTO highest FROM {rows} o;
END
$$;
