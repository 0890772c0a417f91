-- Moves rejected rows to the dead letters.
--
-- Except locked ones. Returns the IDs of those that were moved. The server moves whole events, so the relay need not have read their payloads. OFFSET 0 keeps the
-- converted payloads out of the sort.
--
-- $1: the IDs of the rows
-- $2: their event IDs
-- $3: their topics
-- $4: the reasons
-- $5: the errors
WITH moved AS (
    DELETE FROM :outbox o
    USING unnest($1::bigint[], $2::uuid[], $3::text[], $4::text[], $5::text[]) AS r(id, event_id, topic, reason, error)
    WHERE o.:id_column = r.id AND o.:event_id_column = r.event_id
      AND o.:id_column = ANY (ARRAY(
          SELECT :id_column FROM :outbox WHERE :id_column = ANY($1::bigint[]) FOR UPDATE SKIP LOCKED))
    RETURNING :whole_event,
              r.topic, r.reason, r.error
\if :has_topic
              , o.:topic_column AS row_topic
\endif
)
INSERT INTO :dead_letter (outbox_id, event_id, aggregate_type, aggregate_id, event_type, payload, headers,
                           created_at, topic, reason, error
\if :has_topic
                           , row_topic
\endif
)
SELECT id, event_id, aggregate_type, aggregate_id, event_type, :payload_bytes, headers, created_at, topic, reason,
       error
\if :has_topic
       , row_topic
\endif
FROM (SELECT * FROM moved ORDER BY id OFFSET 0) AS moved
RETURNING outbox_id;
