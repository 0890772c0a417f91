-- Lists held topics, the longest held first, and counts all.
SELECT topic, reason, left(error, 2000), held_at, probe_at, probes, (SELECT count(*) FROM :hold)
FROM :hold
ORDER BY held_at, topic
LIMIT 100;
