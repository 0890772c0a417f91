-- Marks acknowledged rows (on_sent = "mark").
--
-- Returns how many have the mark: a trigger can suppress the change, or keep the old value. Only this statement and
-- mark_around_locks set sent_at.
--
-- $1: the IDs of acknowledged rows
WITH changed AS (
    UPDATE :outbox SET :sent_at_column = clock_timestamp()
    WHERE :id_column = ANY($1::bigint[])
    RETURNING :sent_at_column AS sent_at
)
SELECT count(sent_at) FROM changed;
