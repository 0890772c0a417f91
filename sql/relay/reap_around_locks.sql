-- Deletes the old, unlocked rows of a range of pages.
--
-- $1: the place where the range of pages begins
-- $2: the place where it ends
-- $3: the retention in seconds
-- $4: the quoted name of the outbox
WITH turn AS MATERIALIZED (
    SELECT FROM :reaper WHERE singleton FOR UPDATE SKIP LOCKED
), locked AS MATERIALIZED (
    SELECT ctid AS place
    FROM :outbox
    WHERE ctid >= $1::text::tid AND ctid < $2::text::tid
      AND :sent_at_column < (SELECT clock_timestamp() - $3::float8 * interval '1 second')
      AND EXISTS (SELECT FROM turn)
    FOR UPDATE SKIP LOCKED
), reaped AS (
    DELETE FROM :outbox
    WHERE ctid = ANY (ARRAY(SELECT place FROM locked))
      AND :sent_at_column < (SELECT clock_timestamp() - $3::float8 * interval '1 second')
    RETURNING 1
)
SELECT EXISTS (SELECT FROM turn), (SELECT count(*) FROM reaped),
       pg_relation_size($4::text::regclass) / current_setting('block_size')::bigint,
       pg_relation_filenode($4::text::regclass)::bigint, EXISTS (SELECT FROM :reaper);
