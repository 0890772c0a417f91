-- Lists held topics, the longest held first, and counts all. The reason comes twice, because the remedy is derived from it.
SELECT topic, reason, left(error, 2000), reason, held_at, probe_at, probes, (SELECT count(*) FROM :hold)
FROM :hold
ORDER BY held_at, topic
LIMIT 100;
