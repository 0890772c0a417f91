-- Lists blocked keys, the newest or the oldest first, and whether their event is in the outbox and unsent. An operator may have
-- marked or deleted it. After a failover, another event can have its id.
-- $1 to $7: the selection, see operate/selected.sql
-- $8: the lowest id of the previous page, or the highest id
-- $9: the maximum number of rows
SELECT s.outbox_id AS id, s.event_id, s.aggregate_type, s.aggregate_id, s.topic, s.reason, s.error,
       s.blocked_at,
       EXISTS (
           SELECT FROM :outbox o
           WHERE o.:id_column = s.outbox_id AND o.:event_id_column = s.event_id AND o.:sent_at_column IS NULL)
FROM :blocked_key s
\if :newest_first
WHERE :selected AND s.outbox_id < $8::bigint
ORDER BY s.outbox_id DESC
\else
WHERE :selected AND s.outbox_id <= $8::bigint
ORDER BY s.outbox_id ASC
\endif
LIMIT $9::bigint;
