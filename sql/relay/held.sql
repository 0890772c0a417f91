-- Lists held topics.
--
-- $1: the maximum number of topics
SELECT topic, reason FROM :hold ORDER BY held_at, topic LIMIT $1::bigint;
