-- Finds out whether a flow has something to read.
--
-- Most reads of a flow find no rows, and cost six times as much.
--
-- $1: the highest ID read so far
-- $2: lower IDs that no read has returned
-- $3: the transactions that the marks except
\set excepted $3
SELECT v.version, v.epoch,
       (SELECT i.id FROM :rows_with_topic i WHERE i.id > $1::bigint ORDER BY i.id LIMIT 1) IS NOT NULL
           OR (SELECT i.id FROM :rows_with_topic i WHERE i.id = ANY($2::bigint[]) ORDER BY i.id LIMIT 1) IS NOT NULL
FROM :versions_if_open;
