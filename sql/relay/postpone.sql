-- Sets the next probe of topics whose probe has failed.
--
-- The backoff is exponential, from 1 s to 10 s, with jitter in the upper half. If more than 1,000 topics are held, it is longer,
-- but within the minute that due.sql allows: 133 probes per second with up to 5,000 topics, and 267 with 10,000.
--
-- A topic that rejected everything keeps this reason while it is stuck, because its probes depend on it.
--
-- $1: the topics
-- $2: the reasons, NULL if unchanged
-- $3: the errors
UPDATE :hold h
SET probe_at = now()
        + greatest(least(power(2, least(h.probes, 10)), 10), n.least) * (0.5 + random() / 2) * interval '1 second',
    reason = CASE
                 WHEN h.reason = 'rejects-everything' AND f.reason = 'stuck' THEN h.reason
                 ELSE coalesce(f.reason, h.reason)
             END,
    error = f.error
FROM unnest($1::text[], $2::text[], $3::text[]) AS f(topic, reason, error),
     (SELECT CASE WHEN count(*) > 1000 THEN least(count(*) / 100.0, 50) ELSE 0 END AS least FROM :hold) AS n
WHERE h.topic = f.topic
RETURNING h.topic, h.probe_at;
