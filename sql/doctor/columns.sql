-- Returns the type of the payload column, and whether there is a topic column.
-- $1: the quoted name of the outbox
-- $2: the name of the payload column
-- $3: the name of the topic column
SELECT max(format_type(a.atttypid, NULL)) FILTER (WHERE a.attname = $2::text),
       count(*) FILTER (WHERE a.attname = $3::text) > 0
FROM pg_attribute AS a
WHERE a.attrelid = to_regclass($1::text) AND a.attname IN ($2::text, $3::text) AND NOT a.attisdropped;
