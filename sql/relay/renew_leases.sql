-- Extends the lease of topics whose probe is in flight, or whose probed row is not recorded as sent yet.
--
-- $1: the topics
-- $2: the lease in ms
UPDATE :hold SET probe_at = now() + $2::integer * interval '1 millisecond' WHERE topic = ANY($1::text[]);
