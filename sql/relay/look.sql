-- Looks for new rows.
--
-- Returns the newest ids above one and those of these gaps that are committed, with the lanes of the unsent rows. The newest come
-- first, because on a server with many index entries of deleted rows, the oldest would be behind all of them.
--
-- $1: the highest known id
-- $2: the gaps below it
-- $3: the maximum number of rows of each kind
SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, pg_backend_pid(),
       v.version, v.epoch, n.id, n.lane
FROM :versions
LEFT JOIN LATERAL (
    (SELECT o.id, CASE WHEN o.sent_at IS NULL THEN (hashtext(o.aggregate_id) & 63)::smallint END AS lane
     FROM :rows_with_topic o WHERE o.id > $1::bigint ORDER BY o.id DESC LIMIT $3::bigint)
    UNION ALL
    (SELECT o.id, CASE WHEN o.sent_at IS NULL THEN (hashtext(o.aggregate_id) & 63)::smallint END AS lane
     FROM :rows_with_topic o WHERE o.id = ANY ($2::bigint[]) ORDER BY o.id LIMIT $3::bigint)
) n ON true;
