-- The next ID and the highest one, if the sequence is behind: a row that waits has a higher ID, or one of the next IDs is in use. An
-- inherited or pooled ID would be above the sequence. A single sent row with a very large ID does no harm.
--
-- A table that is about to be adopted may lack the column that shows whether a row is sent. Then its name refers to the one of t.
SELECT n.next, o.highest FROM (SELECT last_value + is_called::integer AS next FROM :sequence) AS n,
     (SELECT max(:id_column)::bigint AS highest FROM :outbox) AS o,
     (SELECT NULL::timestamptz AS :sent_at_column) AS t
WHERE o.highest >= n.next
  AND CASE WHEN (SELECT min(:id_column) FROM :outbox WHERE :id_column >= n.next) - n.next < 1000 THEN true
           ELSE EXISTS (SELECT FROM :outbox WHERE :id_column >= n.next AND :sent_at_column IS NULL) END;
