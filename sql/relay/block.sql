-- Blocks the keys of rejected rows (on_rejected = "block-key").
--
-- Returns their IDs. The rows stay in the outbox. The caller ensures that no earlier row of the key is unsent. To check that here, the server would
-- search the unsent rows of the lane for each rejected row.
--
-- $1: the IDs of the rows
-- $2: their event IDs
-- $3: their topics
-- $4: the reasons
-- $5: the errors
INSERT INTO :blocked_key (aggregate_type, aggregate_id, outbox_id, event_id, topic, reason, error)
SELECT o.aggregate_type, o.aggregate_id, o.id, o.event_id, r.topic, r.reason, r.error
FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::text[], $5::text[]) AS r(id, event_id, topic, reason, error)
JOIN :rows o ON o.id = r.id AND o.event_id = r.event_id AND o.sent_at IS NULL
ON CONFLICT (outbox_id) DO NOTHING
RETURNING outbox_id;
