-- Lists the oldest blocked keys, and counts all. The reason comes twice, because the remedy is derived from it.
-- $1: the maximum to count
SELECT topic, left(aggregate_id, 300), outbox_id, reason, reason, blocked_at,
       (SELECT count(*) FROM (SELECT FROM :blocked_key LIMIT $1) AS b)
FROM :blocked_key
ORDER BY outbox_id
LIMIT 5;
