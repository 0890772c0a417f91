-- The conditions of the filters of `dead-letters` and `blocked-keys`, on a row s. Filters that are not set are constant for the planner.
--
-- :id and :at are the column of the id and the time of the rejection.
-- $1: the topic, or NULL
-- $2: the key, or NULL
-- $3: the reason, or NULL
-- $4: rejected longer ago than this number of seconds, or NULL
-- $5: rejected less long ago than this number of seconds, or NULL
-- $6: the ids, or NULL
-- $7: the event ids, or NULL
-- $8: for dead letters, whether they were requeued, or NULL
($1::text IS NULL OR s.topic = $1)
AND ($2::text IS NULL OR s.aggregate_id = $2)
AND ($3::text IS NULL OR s.reason = $3)
AND ($4::float8 IS NULL OR s.:at < now() - $4 * interval '1 second')
AND ($5::float8 IS NULL OR s.:at >= now() - $5 * interval '1 second')
AND ($6::bigint[] IS NULL OR s.:id = ANY ($6))
AND ($7::uuid[] IS NULL OR s.event_id = ANY ($7))
\if :is_dead_letter
AND ($8::boolean IS NULL OR (s.requeued_at IS NOT NULL) = $8)
\endif
