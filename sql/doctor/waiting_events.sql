-- Reads the first unsent rows of each lane, by topic. Names are cut to a length that is still too long for a topic. Large headers
-- are not checked.
-- $1: the lanes
-- $2: the number of rows per lane
-- $3: the size of the largest record in bytes; larger rows do not fit
-- $4: the maximum number of topics
-- $5: the reserved names of headers
-- $6: a JSON path that finds an invalid header
SELECT left(p.topic, 300), count(*), max(p.bytes)::bigint,
       (array_agg(p.id ORDER BY p.id))[1:5],
       count(*) FILTER (WHERE p.bytes > $3::bigint),
       (array_agg(p.id ORDER BY p.id) FILTER (WHERE p.bytes > $3::bigint))[1:5],
       count(*) FILTER (WHERE p.bad_headers),
       (array_agg(p.id ORDER BY p.id) FILTER (WHERE p.bad_headers))[1:5],
       p.is_named
FROM unnest($1::smallint[]) AS l(lane)
CROSS JOIN LATERAL (
    SELECT o.id, :topic AS topic,
\if :has_topic
           o.topic IS NOT NULL AS is_named,
\else
           false AS is_named,
\endif
           coalesce(:payload_length, 0)::bigint + octet_length(o.aggregate_id) + octet_length(o.event_type) AS bytes,
           CASE WHEN pg_column_size(o.headers) <= 2000 AND pg_column_compression(o.headers) IS NULL
                THEN CASE WHEN jsonb_typeof(o.headers) NOT IN ('object', 'null') THEN true
                          ELSE o.headers @? $6::text::jsonpath
                               OR o.headers ?| $5::text[] END
                ELSE false END AS bad_headers
    FROM :whole_rows o
    WHERE (hashtext(o.aggregate_id) & 63) = ANY (ARRAY[l.lane]) AND o.sent_at IS NULL
    ORDER BY (hashtext(o.aggregate_id) & 63), o.id
    LIMIT $2::bigint
) AS p
GROUP BY 1, p.is_named
ORDER BY 2 DESC
LIMIT $4::bigint;
