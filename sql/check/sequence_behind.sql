-- The next ID and the highest one, if the sequence is behind. An inherited or pooled ID would be above the sequence.
SELECT n.next, o.highest FROM (SELECT last_value + is_called::integer AS next FROM :sequence) AS n,
     (SELECT max(:id_column)::bigint AS highest FROM :outbox) AS o
WHERE o.highest >= n.next;
