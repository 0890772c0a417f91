-- Assigns due topics to this relay.
--
-- For the lease. If the relay dies, another one takes over when the lease ends. Skips paused topics, because a probe sends a row.
--
-- No relay sets probe_at more than a minute ahead. A later time means that the clock has stepped back, or that the previous
-- server's clock was ahead, so the topic counts as due.
--
-- $1: the maximum number of topics
-- $2: the lease in ms
UPDATE :hold SET probe_at = now() + $2::integer * interval '1 millisecond', probes = probes + 1
WHERE topic IN (
    SELECT h.topic
    FROM :hold h
    WHERE (h.probe_at <= now() OR h.probe_at > now() + interval '1 minute')
      AND NOT EXISTS (
        SELECT FROM :pause b WHERE b.aggregate_id IS NULL AND (b.topic IS NULL OR b.topic = h.topic))
    ORDER BY h.probe_at
    LIMIT $1::bigint
    FOR UPDATE SKIP LOCKED)
RETURNING topic, reason;
