-- Lists pauses.
--
-- $1: the maximum number of pauses
SELECT id, topic, aggregate_type, reason FROM :pause ORDER BY id LIMIT $1::bigint;
