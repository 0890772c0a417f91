-- Reads the first pending row of each lane, without its payload and headers.
--
-- This is the first row that the claim's read would return, without columns that may be large or damaged. The payload is NULL and
-- too_large is set, so that the row cannot be mistaken for a tombstone.
--
-- $1: the lanes
-- $2: the low-water mark of each lane
-- $3: the epoch for which the low-water marks were raised
-- $4: the transactions that the marks except
-- $5: an ID below the rows of those transactions
\set excepted $4
\set floor $5
SELECT v.version, v.epoch, p.*
FROM :versions_and_open
CROSS JOIN unnest($1::smallint[], $2::bigint[]) AS l(lane, low)
LEFT JOIN LATERAL (
    SELECT o.id, l.lane AS lane, o.event_id, left(o.aggregate_type, 300), left(o.aggregate_id, 300),
\if :has_event_type
           left(o.event_type, 300),
\else
           NULL::text,
\endif
           NULL::json, 0::bigint, NULL::jsonb, o.created_at
\if :deletes
           , o.ctid
\endif
\if :has_topic
           , left(o.topic, 300) AS outbox_relay_topic
\endif
    FROM :whole_rows o
    WHERE :pending
    ORDER BY (hashtext(o.aggregate_id) & 63), o.id
    LIMIT 1
) p ON true;
