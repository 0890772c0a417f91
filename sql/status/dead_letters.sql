-- Counts the latest dead letters that were not requeued, by reason, and those of the last 10 minutes.
-- $1: the maximum number of dead letters
SELECT reason, count(*), count(*) FILTER (WHERE rejected_at > now() - interval '10 minutes')
FROM (SELECT reason, rejected_at FROM :dead_letter WHERE requeued_at IS NULL ORDER BY id DESC LIMIT $1::bigint) AS latest
GROUP BY reason
ORDER BY count(*) DESC, reason;
