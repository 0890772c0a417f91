-- Records the topic template.
--
-- Replaces only the template that was read, so that of two relays that start at the same time, the second one reads what the first
-- one has recorded. Returns a row if it has recorded the template.
--
-- $1: the template
-- $2: the template that was read
INSERT INTO :setting AS recorded (topic_template) VALUES ($1::text)
ON CONFLICT (singleton) DO UPDATE
SET topic_template = excluded.topic_template, recorded_at = excluded.recorded_at, role = excluded.role,
    application = excluded.application, address = excluded.address
WHERE recorded.topic_template = $2::text
RETURNING true;
