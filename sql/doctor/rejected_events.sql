-- Counts those of the latest dead letters that were not requeued, by topic and reason, and those of the last hour. Reads only some columns,
-- because the relay may not read the others.
-- $1: the maximum number of dead letters to read
-- $2: the maximum number of rows
SELECT left(d.topic, 300), d.reason, count(*) FILTER (WHERE d.rejected_at > now() - interval '1 hour')
FROM (
    SELECT topic, reason, rejected_at, requeued_at FROM :dead_letter ORDER BY id DESC LIMIT $1::bigint
) AS d
WHERE d.requeued_at IS NULL
GROUP BY 1, 2
ORDER BY 3 DESC
LIMIT $2::bigint;
