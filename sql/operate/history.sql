-- Lists what operators have done, the newest first. Triggers and commands record it. The role that logged in is NULL for acts
-- before the column existed.
-- $1: the lowest id of the previous page
-- $2: only this event, or NULL
-- $3: the maximum number of rows
SELECT id, at, to_jsonb(a) ->> 'login', role, application, host(address), act, dead_letter_id, outbox_id, event_id, pause_id, aggregate_type, topic,
       reason
FROM :act AS a
WHERE id < $1::bigint AND ($2::uuid IS NULL OR event_id = $2)
ORDER BY id DESC
LIMIT $3::bigint;
