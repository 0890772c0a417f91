-- Counts unsent rows, and estimates above 10,000.
--
-- Above 10,000, this is the range of their ids, which is accurate if there are few sent rows between them.
--
-- $1: the lanes
-- $2: the low-water mark of each lane
SELECT CASE WHEN counted <= 10000 THEN counted
            ELSE greatest(counted, (SELECT id FROM :named_rows ORDER BY id DESC LIMIT 1) - oldest + 1) END
FROM (
    SELECT count(*) AS counted, min(id) AS oldest
    FROM (
        SELECT p.id
        FROM unnest($1::smallint[], $2::bigint[]) AS l(lane, low)
        CROSS JOIN LATERAL (
            SELECT o.id
            FROM :rows o
            WHERE (hashtext(o.aggregate_id) & 63) = ANY (ARRAY[l.lane]) AND o.sent_at IS NULL AND o.id > l.low
            ORDER BY (hashtext(o.aggregate_id) & 63), o.id
            LIMIT 10001
        ) p
        LIMIT 10001
    ) AS bounded
) AS c;
