-- Deletes acknowledged rows (on_sent = "delete").
--
-- By their place, which needs no index. It also compares the IDs and the event IDs, because rows are not locked: another row may be
-- in that place by now, and IDs can start again.
--
-- The server hashes the IDs. IS TRUE prevents a join. With = ANY ($2), it would search the whole array for each row, which triples
-- the cost of a batch of 5,000.
--
-- $1: the ctids of acknowledged rows
-- $2: their IDs
-- $3: their event IDs
DELETE FROM :outbox
WHERE ctid = ANY($1::tid[])
    AND (:id_column IN (SELECT unnest($2::bigint[]))) IS TRUE
    AND (:event_id_column IN (SELECT unnest($3::uuid[]))) IS TRUE;
