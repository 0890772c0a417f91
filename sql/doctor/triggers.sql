-- Lists triggers that fire before the update of sent_at, or before a delete, for each row. PostgreSQL manual, "Overview of Trigger
-- Behavior": one that returns NULL skips the row, and one that returns OLD changes nothing. In tgtype, 1 is FOR EACH ROW, 2 is
-- BEFORE, 8 is DELETE, 16 is UPDATE.
-- $1: the quoted name of the outbox
-- $2: the name of the column sent_at
SELECT quote_ident(t.tgname)
FROM pg_trigger AS t
JOIN pg_attribute AS a ON a.attrelid = t.tgrelid AND a.attname = $2::text
WHERE t.tgrelid = $1::text::regclass AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND t.tgtype & 3 = 3
  AND (t.tgtype & 8 > 0 OR t.tgtype & 16 > 0 AND (cardinality(t.tgattr::int2[]) = 0 OR a.attnum = ANY (t.tgattr::int2[])))
ORDER BY 1;
