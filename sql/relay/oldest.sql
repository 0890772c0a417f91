-- Returns the age of the oldest unsent row.
--
-- That is the oldest of the first unsent rows of each lane, because ids have about the order of created_at. The second column is
-- the server's time in microseconds.
--
-- Rows that are held, blocked or paused may be below the marks. If there are none, the marks apply. Otherwise the statement would
-- walk the index entries of all rows that were sent since the last vacuum.
--
-- A writer can store an infinite time. It is subtracted as a number of seconds, because subtracting an infinite timestamp is an
-- error before PostgreSQL 17.
--
-- $1: the lanes
-- $2: the low-water mark of each lane
-- $3: the epoch for which the marks were raised
SELECT max(greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM p.created_at), 0))::float8,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
FROM (
    SELECT CASE WHEN :is_free THEN v.version END AS version,
           v.epoch
    FROM :versions OFFSET 0
) v
CROSS JOIN unnest($1::smallint[], $2::bigint[]) AS l(lane, low)
CROSS JOIN LATERAL (
    SELECT o.created_at
    FROM :rows_with_topic o
    WHERE (hashtext(o.aggregate_id) & 63) = ANY (ARRAY[l.lane]) AND o.sent_at IS NULL
      AND o.id > CASE WHEN v.version IS NOT NULL AND v.epoch = $3::bigint THEN l.low
                      ELSE -9223372036854775808 END
    ORDER BY (hashtext(o.aggregate_id) & 63), o.id
    LIMIT 1
) p;
