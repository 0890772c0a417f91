-- Counts the oldest selected dead letters whose events would be rejected again after a requeue, by the topic that they would
-- have now.
-- $1 to $8: the selection, see operate/selected.sql
-- $9: the highest id
-- $10: the maximum number of dead letters
-- $11 to $14: the changes of their headers, see part/changed_headers.sql
-- $15: the reserved names of headers
\set stringify $11
\set dropped $12
\set added $13
\set bad_header $14
\if :has_topic
SELECT left(:topic, 300), o.topic IS NOT NULL, count(*), count(*) FILTER (WHERE o.has_bad_headers),
\else
SELECT left(:topic, 300), false, count(*), count(*) FILTER (WHERE o.has_bad_headers),
\endif
       count(*) FILTER (WHERE o.bytes > :record_bytes_max)
FROM (
    SELECT c.aggregate_type, c.event_type, c.row_topic AS topic,
           coalesce(octet_length(c.payload), 0)::bigint + octet_length(c.aggregate_id) + octet_length(c.event_type) AS bytes,
           CASE jsonb_typeof(c.changed)
               WHEN 'null' THEN false
               WHEN 'object' THEN c.changed @? $14::text::jsonpath OR c.changed ?| $15::text[]
               ELSE c.changed IS NOT NULL
           END AS has_bad_headers
    FROM (
        SELECT s.*, :changed_headers AS changed
        FROM (SELECT s.* FROM :dead_letter s WHERE :selected AND s.id <= $9::bigint ORDER BY s.id LIMIT $10::bigint) AS s
    ) AS c
) AS o
GROUP BY 1, 2
ORDER BY 3 DESC
LIMIT 1000;
