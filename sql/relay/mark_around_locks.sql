-- Marks acknowledged rows that are not locked.
--
-- Returns each row that is not locked, and whether it was changed. A trigger or a rule of the outbox can suppress the change
-- without an error.
--
-- $1: the IDs of acknowledged rows
-- $2: their event IDs, as in mark
WITH free AS MATERIALIZED (
    SELECT :id_column AS id FROM :outbox
    WHERE :id_column = ANY($1::bigint[]) AND (:event_id_column IN (SELECT unnest($2::uuid[]))) IS TRUE
    FOR NO KEY UPDATE SKIP LOCKED
), changed AS (
    UPDATE :outbox SET :sent_at_column = clock_timestamp() WHERE :id_column = ANY (ARRAY(SELECT id FROM free))
    RETURNING :id_column AS id, :sent_at_column AS sent_at
)
SELECT free.id, free.id IN (SELECT id FROM changed WHERE sent_at IS NOT NULL) FROM free;
