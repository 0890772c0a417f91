-- Counts the idempotency keys that the reaper would delete.
--
-- $1: the retention in seconds
SELECT count(*) FROM :idempotency_key
WHERE finished_at < now() - make_interval(secs => $1)
   OR finished_at IS NULL AND recovery_point IS NULL AND locked_until <= now()
      AND created_at < now() - greatest(make_interval(secs => $1), interval '30 days');
