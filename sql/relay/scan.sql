-- Finds the lanes that have pending rows.
--
-- The first pending row of each lane, with one index probe per lane.
--
-- $1: the lanes
-- $2: the low-water mark of each lane
-- $3: the epoch for which the low-water marks were raised
-- $4: the transactions that the marks except
-- $5: an ID below the rows of those transactions
\set excepted $4
\set floor $5
SELECT l.lane, p.id,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
       pg_backend_pid(), v.epoch
FROM :versions_and_open
CROSS JOIN unnest($1::smallint[], $2::bigint[]) AS l(lane, low)
LEFT JOIN LATERAL (
    SELECT o.id
    FROM :rows_with_topic o
    WHERE :pending
    ORDER BY (hashtext(o.aggregate_id) & 63), o.id
    LIMIT 1
) p ON true;
