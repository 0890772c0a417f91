-- Finds a row to probe each held topic with.
--
-- It uses the key whose row failed, as long as that key has unsent rows. If the topic rejects every row, it uses a random row,
-- because another one may succeed.
--
-- The second branch runs only if the first one finds nothing. Keys that are too long for an index entry are not returned.
--
-- $1: the topics
-- $2: whether any row of the topic will do
-- $3: all lanes
SELECT d.topic, w.lane, w.id, CASE WHEN octet_length(w.aggregate_id) <= 8192 THEN w.aggregate_id END
FROM unnest($1::text[], $2::boolean[]) AS d(topic, any_row)
CROSS JOIN LATERAL (
    SELECT (hashtext(h.aggregate_id) & 63)::smallint AS lane, p.id, p.aggregate_id
    FROM :hold h
    CROSS JOIN LATERAL (
        SELECT o.id, o.aggregate_id
        FROM :rows_with_topic o
        WHERE (hashtext(o.aggregate_id) & 63) = ANY (ARRAY[(hashtext(h.aggregate_id) & 63)]) AND o.sent_at IS NULL
          AND o.aggregate_id = h.aggregate_id AND :topic = d.topic AND :not_blocked
        ORDER BY (hashtext(o.aggregate_id) & 63), o.id
        LIMIT 1
    ) p
    WHERE h.topic = d.topic AND NOT d.any_row
    UNION ALL
    (SELECT l.lane, p.id, p.aggregate_id
    FROM (SELECT lane FROM unnest($3::smallint[]) AS lanes(lane) ORDER BY random()) AS l
    CROSS JOIN LATERAL (
        SELECT o.id, o.aggregate_id
        FROM :rows_with_topic o
        WHERE (hashtext(o.aggregate_id) & 63) = ANY (ARRAY[l.lane]) AND o.sent_at IS NULL
          AND :topic = d.topic AND :not_blocked
        ORDER BY (hashtext(o.aggregate_id) & 63), o.id
        LIMIT 1
    ) p
    LIMIT 1)
    LIMIT 1
) AS w;
