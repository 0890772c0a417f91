-- Deletes acknowledged rows that are not locked.
--
-- $1: the IDs of acknowledged rows
-- $2: their event IDs, as in mark
WITH free AS MATERIALIZED (
    SELECT :id_column AS id FROM :outbox
    WHERE :id_column = ANY($1::bigint[]) AND (:event_id_column IN (SELECT unnest($2::uuid[]))) IS TRUE
    FOR UPDATE SKIP LOCKED
), changed AS (
    DELETE FROM :outbox WHERE :id_column = ANY (ARRAY(SELECT id FROM free)) RETURNING :id_column AS id
)
SELECT free.id, free.id IN (SELECT id FROM changed) FROM free;
