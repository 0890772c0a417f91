-- Reads new rows during a flow if nothing is held, blocked or paused, and no row is large.
--
-- The same as read_new, if the gaps are close to the highest id too. It adds a third as much to the cost of a round trip, because
-- the server prepares fewer conditions and scans one index range.
--
-- If something is held, blocked or paused, the version is NULL and no rows are returned. A large row has a lane and a size, but no
-- contents. So has a row whose size is NULL, because a column has lost its NOT NULL.
--
-- $1: the highest ID read so far
-- $2: lower IDs that no read has returned
-- $3: the version of the holds of the flow
-- $4: the epoch of the flow
-- $5: the size in bytes of the largest record
-- $6: the maximum number of rows to read
-- $7: the lanes
-- $8: the transactions that the marks except
-- $9: an id below the first gap
\set excepted $8
SELECT v.version, v.epoch, r.id, r.lane, r.event_id,
       CASE WHEN r.is_small THEN r.aggregate_type END,
       CASE WHEN r.is_small THEN r.aggregate_id END,
       CASE WHEN r.is_small THEN r.event_type END,
       CASE WHEN r.is_small THEN r.payload END,
       CASE WHEN r.lane IS NOT NULL AND r.is_small IS NOT TRUE THEN 0::bigint END,
       CASE WHEN r.is_small THEN r.headers END,
       r.created_at
\if :deletes
       , r.ctid
\endif
\if :has_topic
       , r.outbox_relay_topic
\endif
FROM (
    SELECT CASE WHEN :is_free THEN v.version END AS version,
           v.epoch
    FROM :versions_if_open OFFSET 0
) v
LEFT JOIN LATERAL (
    SELECT o.id, o.event_id, o.aggregate_type, o.aggregate_id, o.event_type, o.payload, o.headers, o.created_at
\if :deletes
           , o.ctid
\endif
\if :has_topic
           , CASE WHEN o.sent_at IS NULL AND (hashtext(o.aggregate_id) & 63) = ANY($7::smallint[])
                  THEN left(o.topic, 300) END AS outbox_relay_topic
\endif
           ,
           CASE WHEN o.sent_at IS NULL AND (hashtext(o.aggregate_id) & 63) = ANY($7::smallint[])
                THEN (hashtext(o.aggregate_id) & 63)::smallint END AS lane,
           CASE WHEN o.sent_at IS NULL AND (hashtext(o.aggregate_id) & 63) = ANY($7::smallint[])
                THEN coalesce(:payload_length, 0)::bigint + octet_length(o.aggregate_id)
                        + octet_length(o.event_type) + octet_length(o.aggregate_type) <= $5::integer
                    AND (o.headers IS NULL
                        OR pg_column_size(o.headers) <= 2000 AND pg_column_compression(o.headers) IS NULL)
           END AS is_small
    FROM :whole_rows o
    WHERE o.id > $9::bigint
        AND (o.id > $1::bigint OR o.id = ANY($2::bigint[]))
        AND v.version = $3::bigint AND v.epoch = $4::bigint
    ORDER BY o.id
    LIMIT $6::bigint
) r ON true;
