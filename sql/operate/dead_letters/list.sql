-- Lists dead letters, the newest or the oldest first.
-- $1 to $8: the selection, see operate/selected.sql
-- $9: the lowest id of the previous page, or the highest id
-- $10: the maximum number of rows
SELECT s.id, s.outbox_id, s.event_id, s.aggregate_type, s.aggregate_id, s.event_type, s.topic, s.reason, s.error,
       s.rejected_at, s.requeued_at, octet_length(s.payload)
FROM :dead_letter s
\if :newest_first
WHERE :selected AND s.id < $9::bigint
ORDER BY s.id DESC
\else
WHERE :selected AND s.id <= $9::bigint
ORDER BY s.id ASC
\endif
LIMIT $10::bigint;
