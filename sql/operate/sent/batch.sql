-- Reads a batch of rows by id, and returns those of them that are selected, or counts them by topic. A batch ends with the last row
-- that was read or, if more rows are selected than wanted, with the last of those.
-- $1 to $7: the selection, see selected.sql
-- $8: the last id of the previous batch
-- $9: the highest id
-- $10: the number of rows to read
-- $11: the number of selected rows to return
WITH scanned AS MATERIALIZED (
    SELECT o.:id_column AS id, :topic AS topic, :selected AS is_selected
    FROM :outbox o
    WHERE o.:id_column > $8::bigint AND o.:id_column <= $9::bigint
    ORDER BY o.:id_column
    LIMIT $10::bigint
), picked AS MATERIALIZED (
    SELECT s.id, s.topic FROM scanned s WHERE s.is_selected ORDER BY s.id LIMIT $11::bigint
), reached AS (
    SELECT CASE WHEN (SELECT count(*) FROM picked) < $11::bigint THEN (SELECT max(id) FROM scanned)
                ELSE (SELECT max(id) FROM picked) END AS id
)
\if :counts
SELECT topic, count(*), NULL::bigint FROM picked GROUP BY topic
UNION ALL
SELECT NULL, 0, id FROM reached;
\else
SELECT ARRAY(SELECT id FROM picked ORDER BY id), id FROM reached;
\endif
