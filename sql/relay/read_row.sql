-- Reads rows by ID, to settle a late acknowledgement or to find an unreadable row.
--
-- It reads a row even if it is held, blocked or paused.
--
-- $1: the lanes
-- $2: the low-water mark of each lane
-- $3: not null
-- $4: the maximum number of rows to read
-- $5: the size in bytes of the largest record
-- $6: the maximum number of rows to read from each lane
-- $7: the ID of a row, for each lane
\set is_read ''
\set skips ''
\set row_lane l.lane
SELECT v.version, v.basis, r.*
FROM :versions
LEFT JOIN LATERAL (
    SELECT :event
\if :deletes
           , p.outbox_relay_place
\endif
\if :has_topic
           , CASE WHEN true THEN left(p.topic, 300) END AS outbox_relay_topic
\endif
    FROM unnest($1::smallint[], $2::bigint[], $6::bigint[], $7::bigint[]) AS l(lane, low, share, witness)
    CROSS JOIN LATERAL (
        SELECT :measured
\if :deletes
               , o.ctid AS outbox_relay_place
\endif
\if :has_topic
               , o.topic
\endif
        FROM :rows_with_topic o
        WHERE (hashtext(o.aggregate_id) & 63) = ANY (ARRAY[l.lane])
            AND o.sent_at IS NULL
            AND o.id > l.low AND $3::bigint IS NOT NULL
            AND o.id = l.witness
        ORDER BY (hashtext(o.aggregate_id) & 63), o.id
        LIMIT l.share
    ) p
    LIMIT $4::bigint
) r ON true;
