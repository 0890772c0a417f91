-- Reads new rows during a flow.
--
-- By id, in one snapshot. A row that the flow may not publish has no lane and no contents: only its id is needed.
--
-- $1: the highest ID read so far
-- $2: lower IDs that no read has returned
-- $3: the version of the holds of the flow
-- $4: the epoch of the flow
-- $5: the size in bytes of the largest record
-- $6: the maximum number of rows to read
-- $7: the lanes
-- $8: the transactions that the marks except
\set excepted $8
\set is_read 'p.lane IS NOT NULL AND'
\set skips 'WHEN o.outbox_relay_lane IS NULL THEN NULL'
\set row_lane o.outbox_relay_lane
SELECT v.version, v.epoch, r.*
FROM :versions_if_open
LEFT JOIN LATERAL (
    SELECT :event
\if :deletes
           , p.outbox_relay_place
\endif
\if :has_topic
           , CASE WHEN p.lane IS NOT NULL AND true THEN left(p.topic, 300) END AS outbox_relay_topic
\endif
    FROM (SELECT) l
    CROSS JOIN LATERAL (
        SELECT :measured
\if :deletes
               , o.outbox_relay_place AS outbox_relay_place
\endif
\if :has_topic
               , o.topic
\endif
        FROM (
            SELECT o.*,
                   CASE WHEN o.sent_at IS NULL
                            AND (hashtext(o.aggregate_id) & 63) = ANY($7::smallint[])
                            AND NOT EXISTS (SELECT FROM :pause WHERE topic IS NULL AND aggregate_id IS NULL)
                            AND :not_held
                            AND :not_blocked
                        THEN (hashtext(o.aggregate_id) & 63)::smallint END AS outbox_relay_lane
            FROM (
                (SELECT i.*, i.ctid AS outbox_relay_place FROM :whole_rows i
                 WHERE i.id = ANY($2::bigint[]) AND v.version = $3::bigint AND v.epoch = $4::bigint)
                UNION ALL
                (SELECT i.*, i.ctid AS outbox_relay_place FROM :whole_rows i
                 WHERE i.id > $1::bigint AND v.version = $3::bigint AND v.epoch = $4::bigint
                 ORDER BY i.id LIMIT $6::bigint)
            ) o
        ) o
        ORDER BY o.id
        LIMIT $6::bigint
    ) p
) r ON true;
