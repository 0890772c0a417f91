-- Counts the first unsent rows of each lane by the reason why they wait. If there are several, a pause counts, then a hold, then a
-- block.
-- $1: the lanes
-- $2: the number of rows per lane
SELECT count(*), count(*) FILTER (WHERE paused), count(*) FILTER (WHERE held AND NOT paused),
       count(*) FILTER (WHERE blocked AND NOT held AND NOT paused), count(*) FILTER (WHERE is_free),
       max(greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM created_at), 0))
           FILTER (WHERE is_free AND isfinite(created_at))::float8,
       min(id) FILTER (WHERE is_free)
FROM (
    SELECT p.*, NOT (p.held OR p.blocked OR p.paused) AS is_free
    FROM unnest($1::smallint[]) AS l(lane)
    CROSS JOIN LATERAL (
        SELECT o.id, o.created_at,
               EXISTS (SELECT FROM :hold b WHERE b.topic = :topic) AS held,
               NOT (:key_not_blocked) AS blocked,
               NOT (:not_paused AND :key_not_paused) AS paused
        FROM :rows_with_topic o
        WHERE (hashtext(o.aggregate_id) & 63) = ANY (ARRAY[l.lane]) AND o.sent_at IS NULL
        ORDER BY (hashtext(o.aggregate_id) & 63), o.id
        LIMIT $2::bigint
    ) AS p
) AS first;
