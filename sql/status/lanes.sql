-- Lists the lanes with unsent rows: how many there are among the first, and the age of the oldest of them.
-- $1: the lanes
-- $2: the number of rows per lane
SELECT l.lane, count(*),
       max(greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM p.created_at), 0))::float8
FROM unnest($1::smallint[]) AS l(lane)
CROSS JOIN LATERAL (
    SELECT o.created_at
    FROM :rows o
    WHERE (hashtext(o.aggregate_id) & 63) = ANY (ARRAY[l.lane]) AND o.sent_at IS NULL
    ORDER BY (hashtext(o.aggregate_id) & 63), o.id
    LIMIT $2::bigint
) AS p
GROUP BY l.lane
ORDER BY l.lane;
