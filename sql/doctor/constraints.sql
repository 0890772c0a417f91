-- Lists checks of sent_at, and foreign keys that refer to the table and reject the deletion of a row: NO ACTION and RESTRICT. A
-- foreign key of a partition has the one of its parent as conparentid (PostgreSQL manual, "pg_constraint").
-- $1: the quoted name of the outbox
-- $2: the name of the column sent_at
SELECT quote_ident(c.conname), c.conrelid::regclass::text, c.contype = 'f'
FROM pg_constraint AS c
LEFT JOIN pg_attribute AS a ON a.attrelid = c.conrelid AND a.attname = $2::text
WHERE c.contype = 'c' AND c.conrelid = $1::text::regclass AND a.attnum = ANY (c.conkey)
   OR c.contype = 'f' AND c.confrelid = $1::text::regclass AND c.conparentid = 0 AND c.confdeltype IN ('a', 'r')
ORDER BY 1, 2;
