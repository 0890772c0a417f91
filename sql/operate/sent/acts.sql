-- Lists the ids of events that operators have discarded, replayed or copied. A discarded dead letter may have been stored in
-- Kafka after all.
-- $1: the last id of the previous page
-- $2: the maximum number of rows
SELECT a.id, CASE WHEN a.act IN ('discard', 'replay', 'copy') THEN a.event_id END, a.act, a.topic
FROM :act a
WHERE a.id > $1::bigint
ORDER BY a.id
LIMIT $2::bigint;
