-- Counts the oldest selected blocked keys: those with and without an unsent event.
-- $1 to $7: the selection, see operate/selected.sql
-- $8: the highest id
-- $9: the maximum number of rows
SELECT count(*) FILTER (WHERE unsent), count(*) FILTER (WHERE NOT unsent)
FROM (
    SELECT s.outbox_id,
           EXISTS (
               SELECT FROM :outbox o
               WHERE o.:id_column = s.outbox_id AND o.:event_id_column = s.event_id AND o.:sent_at_column IS NULL) AS unsent
    FROM :blocked_key s
    WHERE :selected AND s.outbox_id <= $8::bigint
    ORDER BY s.outbox_id
    LIMIT $9::bigint
) AS fitting;
