-- Lists the pause of everything, then the oldest pauses, with the number of all.
-- $1: the maximum number of rows
SELECT id, topic, aggregate_type, aggregate_id, reason, role, paused_at, count(*) OVER ()
FROM :pause
ORDER BY (topic IS NULL AND aggregate_type IS NULL) DESC, id
LIMIT $1::bigint;
