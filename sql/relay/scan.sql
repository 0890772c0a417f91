-- Finds the lanes that have pending rows.
--
-- The first pending row of each lane, with one index probe per lane. If the rows of a lane are held, blocked or paused, the last two
-- columns are the IDs of the last one that was read, if there may be more, and of the newest one.
--
-- $1: the lanes
-- $2: the low-water mark of each lane
-- $3: the epoch for which the low-water marks were raised
-- $4: the transactions that the marks except
-- $5: an ID below the rows of those transactions
-- $6: the maximum number of unsent rows to read of each lane
\set excepted $4
\set floor $5
SELECT l.lane, p.id,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
       pg_backend_pid(), v.epoch, h.read_to,
       CASE WHEN h.read_to IS NOT NULL
            THEN (SELECT o.id FROM :rows_with_topic o WHERE :above_mark
                  ORDER BY (hashtext(o.aggregate_id) & 63) DESC, o.id DESC LIMIT 1) END
FROM :versions_and_open
CROSS JOIN unnest($1::smallint[], $2::bigint[]) AS l(lane, low)
LEFT JOIN LATERAL (
    SELECT o.id
    FROM (
        SELECT o.*, (hashtext(o.aggregate_id) & 63) AS outbox_relay_lane
        FROM :rows_with_topic o
        WHERE :above_mark
        ORDER BY (hashtext(o.aggregate_id) & 63), o.id
        LIMIT $6::bigint
    ) o
    WHERE :not_held
        AND :not_blocked
    ORDER BY o.outbox_relay_lane, o.id
    LIMIT 1
) p ON true
LEFT JOIN LATERAL (
    SELECT (SELECT o.id FROM :rows_with_topic o WHERE :above_mark
            ORDER BY (hashtext(o.aggregate_id) & 63), o.id LIMIT 1 OFFSET $6::bigint - 1) AS read_to
    WHERE p.id IS NULL AND NOT (:is_free)
) h ON true;
