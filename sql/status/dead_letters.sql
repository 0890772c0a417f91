-- Counts those of the latest dead letters that were not requeued, by reason, and those of the last 10 minutes. The last column is the
-- number of dead letters that were read. If all of them were requeued, there is one row, without a reason.
-- $1: the maximum number of dead letters to read
WITH latest AS MATERIALIZED (
    SELECT reason, rejected_at, requeued_at FROM :dead_letter ORDER BY id DESC LIMIT $1::bigint
)
SELECT coalesce(l.reason, ''), count(l.reason),
       count(*) FILTER (WHERE l.rejected_at > now() - interval '10 minutes'), r.read
FROM (SELECT count(*) AS read FROM latest) AS r
LEFT JOIN latest AS l ON l.requeued_at IS NULL
GROUP BY l.reason, r.read
ORDER BY count(*) DESC, l.reason;
