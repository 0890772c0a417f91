-- Reads unsent rows of the claimed lanes, in order.
--
-- At most its share of each lane, one lane after the other. The LEFT JOIN returns the versions even without rows.
--
-- $1: the lanes
-- $2: the low-water mark of each lane
-- $3: the basis for which the low-water marks were raised
-- $4: the maximum number of rows to read
-- $5: the size in bytes of the largest record
-- $6: the maximum number of rows to read from each lane
-- $7: the transactions that the marks except
-- $8: an ID below the rows of those transactions
\set excepted $7
\set floor $8
\set is_read ''
\set skips ''
\set row_lane l.lane
SELECT v.version, v.basis, r.*
FROM :versions_and_open
LEFT JOIN LATERAL (
    SELECT :event
\if :deletes
           , p.outbox_relay_place
\endif
\if :has_topic
           , CASE WHEN true THEN left(p.topic, 300) END AS outbox_relay_topic
\endif
    FROM unnest($1::smallint[], $2::bigint[], $6::bigint[]) AS l(lane, low, share)
    CROSS JOIN LATERAL (
        SELECT :measured
\if :deletes
               , o.ctid AS outbox_relay_place
\endif
\if :has_topic
               , o.topic
\endif
        FROM :rows_with_topic o
        WHERE :pending
        ORDER BY (hashtext(o.aggregate_id) & 63), o.id
        LIMIT l.share
    ) p
    LIMIT $4::bigint
) r ON true;
