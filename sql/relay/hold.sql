-- Holds topics.
--
-- The ORDER BY prevents deadlocks between relays that hold the same topics at the same time.
--
-- $1: the topics
-- $2: the reasons
-- $3: the errors
-- $4: the ID of a row of each topic
INSERT INTO :hold (topic, aggregate_id, reason, error, probe_at)
SELECT h.topic, o.aggregate_id, h.reason, h.error, clock_timestamp() + interval '1 second'
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS h(topic, reason, error, example)
LEFT JOIN :rows o ON o.id = h.example
ORDER BY h.topic
ON CONFLICT (topic) DO NOTHING;
