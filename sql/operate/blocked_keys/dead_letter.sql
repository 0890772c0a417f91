-- Deletes the oldest selected blocks, and moves their events to the dead letters. The trigger raises the version of the holds, so
-- relays read the rows again, in order. The result depends on the DELETE, not on unsent: another session may mark the event after
-- the snapshot. OFFSET 0 keeps the converted payloads out of the sort.
-- $1 to $7: the selection, see operate/selected.sql
-- $8: the last id of the previous batch
-- $9: the highest id
-- $10: the maximum number of rows
WITH picked AS MATERIALIZED (
    SELECT s.outbox_id
    FROM :blocked_key s
    WHERE :selected AND s.outbox_id > $8::bigint AND s.outbox_id <= $9::bigint
    ORDER BY s.outbox_id
    LIMIT $10::bigint
), lifted AS (
    DELETE FROM :blocked_key s
    WHERE s.outbox_id = ANY (ARRAY(SELECT outbox_id FROM picked)) AND :selected
    RETURNING s.*, EXISTS (
        SELECT FROM :outbox o
        WHERE o.:id_column = s.outbox_id AND o.:event_id_column = s.event_id AND o.:sent_at_column IS NULL) AS unsent
), moved AS (
    DELETE FROM :outbox o
    USING lifted l
    WHERE o.:id_column = l.outbox_id AND o.:event_id_column = l.event_id AND o.:sent_at_column IS NULL
      AND o.:id_column = ANY (ARRAY(SELECT outbox_id FROM lifted))
    RETURNING :whole_event, l.topic, l.reason, l.error
\if :has_topic
              , o.:topic_column AS row_topic
\endif
), dead AS (
    INSERT INTO :dead_letter (outbox_id, event_id, aggregate_type, aggregate_id, event_type, payload, headers,
                              created_at, topic, reason, error
\if :has_topic
                              , row_topic
\endif
    )
    SELECT id, event_id, aggregate_type, aggregate_id, event_type, :payload_bytes, headers, created_at, topic, reason, error
\if :has_topic
           , row_topic
\endif
    FROM (SELECT * FROM moved ORDER BY id OFFSET 0) AS moved
    RETURNING id
)
SELECT (SELECT count(*) FROM dead), (SELECT count(*) FROM lifted) - (SELECT count(*) FROM dead),
       (SELECT max(outbox_id) FROM picked);
