-- Deletes the old rows of a range of pages.
--
-- A row lock allows only one relay at a time. Only the roles of the relay and the operators can take it. If a row is changed
-- concurrently, the server checks its new sent_at, so that an unsent or replayed row is never deleted.
--
-- $1: the place where the range of pages begins
-- $2: the place where it ends
-- $3: the retention in seconds
-- $4: the quoted name of the outbox
WITH turn AS MATERIALIZED (
    SELECT FROM :reaper WHERE singleton FOR UPDATE SKIP LOCKED
), reaped AS (
    DELETE FROM :outbox
    WHERE ctid >= $1::text::tid AND ctid < $2::text::tid
      AND :sent_at_column < (SELECT clock_timestamp() - $3::float8 * interval '1 second')
      AND EXISTS (SELECT FROM turn)
    RETURNING 1
)
SELECT EXISTS (SELECT FROM turn), (SELECT count(*) FROM reaped),
       pg_relation_size($4::text::regclass) / current_setting('block_size')::bigint,
       pg_relation_filenode($4::text::regclass)::bigint, EXISTS (SELECT FROM :reaper);
