-- Returns a dead letter with its payload and headers. The time is returned as text, because a writer can store an infinite one.
-- $1: the id
SELECT s.id, s.outbox_id, s.event_id, s.aggregate_type, s.aggregate_id, s.event_type, s.topic, s.reason, s.error,
       s.rejected_at, s.requeued_at, octet_length(s.payload), s.payload, s.headers::text,
       CASE WHEN isfinite(s.created_at)
            THEN to_char(s.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
            ELSE s.created_at::text END
FROM :dead_letter s
WHERE s.id = $1::bigint;
