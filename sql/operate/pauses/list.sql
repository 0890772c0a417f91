-- Lists the oldest pauses.
-- $1: the maximum number of rows
SELECT id, topic, aggregate_type, aggregate_id, reason, role, paused_at
FROM :pause
ORDER BY id
LIMIT $1::bigint;
