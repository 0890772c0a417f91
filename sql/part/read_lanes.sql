-- Reads rows of the claimed lanes, in order.
--
-- At most its share of each lane, one lane after the other. The LEFT JOIN returns the versions even without rows.
--
-- :is_pending: the rows that may be published. :is_named: the rows l.example. Otherwise: the first unsent row of the topic and the
-- key of the row l.example.
\set is_read ''
\set skips ''
\set row_lane l.lane
SELECT v.version, v.epoch, r.*
\if :is_pending
FROM :versions_and_open
\else
FROM :versions
\endif
LEFT JOIN LATERAL (
    SELECT :event
\if :deletes
           , p.outbox_relay_place
\endif
\if :has_topic
           , CASE WHEN true THEN left(p.topic, 300) END AS outbox_relay_topic
\endif
\if :is_pending
    FROM unnest($1::smallint[], $2::bigint[], $6::bigint[]) AS l(lane, low, share)
\else
    FROM unnest($1::smallint[], $2::bigint[], $6::bigint[], $7::bigint[]) AS l(lane, low, share, example)
\endif
    CROSS JOIN LATERAL (
        SELECT :measured
\if :deletes
               , o.ctid AS outbox_relay_place
\endif
\if :has_topic
               , o.topic
\endif
        FROM :whole_rows o
\if :is_pending
        WHERE :pending
\else
        WHERE (hashtext(o.aggregate_id) & 63) = ANY (ARRAY[l.lane])
            AND o.sent_at IS NULL
            AND o.id > l.low AND $3::bigint IS NOT NULL
\if :is_named
            AND o.id = l.example
\else
\if :is_one_topic
            AND o.aggregate_id = (SELECT w.aggregate_id FROM :rows_with_topic w WHERE w.id = l.example)
\else
            AND (o.aggregate_id, :topic_key)
                = (SELECT w.aggregate_id, :example_topic_key FROM :rows_with_topic w WHERE w.id = l.example)
\endif
            AND :not_paused
            AND :not_blocked
\endif
\endif
        ORDER BY (hashtext(o.aggregate_id) & 63), o.id
        LIMIT l.share
    ) p
    LIMIT $4::bigint
) r ON true;
