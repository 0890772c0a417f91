-- Marks acknowledged rows (on_sent = "mark").
--
-- Returns how many have the mark: a trigger can suppress the change, or keep the old value. Only this statement and
-- mark_around_locks set sent_at.
--
-- Rows are not locked and ids can start again, so another row may have the ID of an acknowledged one by now. The server hashes the
-- event IDs; IS TRUE prevents a join.
--
-- $1: the IDs of acknowledged rows
-- $2: their event IDs
WITH changed AS (
    UPDATE :outbox SET :sent_at_column = clock_timestamp()
    WHERE :id_column = ANY($1::bigint[]) AND (:event_id_column IN (SELECT unnest($2::uuid[]))) IS TRUE
    RETURNING :sent_at_column AS sent_at
)
SELECT count(sent_at) FROM changed;
