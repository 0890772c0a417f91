-- Counts the old rows of a range of pages.
--
-- These are the rows that reap would delete. Takes no lock.
--
-- $1: the place where the range of pages begins
-- $2: the place where it ends
-- $3: the retention in seconds
-- $4: the quoted name of the outbox
SELECT true,
       (SELECT count(*)
        FROM :outbox
        WHERE ctid >= $1::text::tid AND ctid < $2::text::tid
          AND :sent_at_column < (SELECT clock_timestamp() - $3::float8 * interval '1 second')),
       pg_relation_size($4::text::regclass) / current_setting('block_size')::bigint,
       pg_relation_filenode($4::text::regclass)::bigint, true;
