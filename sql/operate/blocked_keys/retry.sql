-- Deletes the oldest selected blocks. The trigger raises the version of the holds, so relays read the rows again, in order.
-- $1 to $7: the selection, see operate/selected.sql
-- $8: the last id of the previous batch
-- $9: the highest id
-- $10: the maximum number of rows
WITH picked AS MATERIALIZED (
    SELECT s.outbox_id
    FROM :blocked_key s
    WHERE :selected AND s.outbox_id > $8::bigint AND s.outbox_id <= $9::bigint
    ORDER BY s.outbox_id
    LIMIT $10::bigint
), lifted AS (
    DELETE FROM :blocked_key s
    WHERE s.outbox_id = ANY (ARRAY(SELECT outbox_id FROM picked)) AND :selected
    RETURNING s.*, EXISTS (
        SELECT FROM :outbox o
        WHERE o.:id_column = s.outbox_id AND o.:event_id_column = s.event_id AND o.:sent_at_column IS NULL) AS unsent
)
SELECT (SELECT count(*) FROM lifted WHERE unsent), (SELECT count(*) FROM lifted WHERE NOT unsent),
       (SELECT max(outbox_id) FROM picked);
