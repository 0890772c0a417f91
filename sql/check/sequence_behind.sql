-- The next ID and the highest one, if the sequence is behind, and the lowest one that is very large and waits. An inherited or pooled ID
-- would be above the sequence. Sent rows with very large IDs do not count: they only make the relay look for new rows less often.
--
-- A table that is about to be adopted may lack the column that shows whether a row is sent. Then its name refers to the one of t.
SELECT n.next, o.highest,
       (SELECT min(:id_column)::bigint FROM :outbox WHERE :id_column >= 4611686018427387904 AND :sent_at_column IS NULL)
FROM (SELECT last_value + is_called::integer AS next FROM :sequence) AS n,
     (SELECT NULL::timestamptz AS :sent_at_column) AS t,
     LATERAL (SELECT max(:id_column)::bigint AS highest FROM :outbox
              WHERE :id_column < 4611686018427387904 OR :sent_at_column IS NULL) AS o
WHERE o.highest >= n.next;
