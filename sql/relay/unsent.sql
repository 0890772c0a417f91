-- Finds those of these rows that are unsent.
--
-- For acknowledged rows that claims do not read, and when a relay stops, to find out what it could not record. IS TRUE prevents a
-- join, which with the statistics of a drained outbox would compare each row with each other.
--
-- $1: the ids
-- $2: the event ids
SELECT o.:id_column
FROM :outbox o
WHERE o.:id_column = ANY ($1::bigint[]) AND o.:sent_at_column IS NULL
  AND ((o.:id_column, o.:event_id_column) IN (SELECT * FROM unnest($1::bigint[], $2::uuid[]))) IS TRUE;
