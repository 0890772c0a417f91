-- Deletes the oldest selected dead letters.
-- $1 to $8: the selection, see operate/selected.sql
-- $9: the last id of the previous batch
-- $10: the highest id
-- $11: the maximum number of rows
WITH picked AS MATERIALIZED (
    SELECT s.id
    FROM :dead_letter s
    WHERE :selected AND s.id > $9::bigint AND s.id <= $10::bigint
    ORDER BY s.id
    LIMIT $11::bigint
), discarded AS (
    DELETE FROM :dead_letter s
    WHERE s.id = ANY (ARRAY(SELECT id FROM picked)) AND :selected
    RETURNING s.id
)
SELECT (SELECT count(*) FROM discarded), 0::bigint, (SELECT max(id) FROM picked);
