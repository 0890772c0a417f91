-- Makes the topics that this relay has postponed due again.
--
-- Only those that still have the time that this relay set. The others were assigned to another relay since.
--
-- $1: the topics
-- $2: the time that this relay has set for each
UPDATE :hold h SET probe_at = now()
FROM unnest($1::text[], $2::timestamptz[]) AS p(topic, probe_at)
WHERE h.topic = p.topic AND h.probe_at = p.probe_at AND h.probe_at > now();
