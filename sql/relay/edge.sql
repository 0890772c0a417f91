-- Finds the page where the old rows begin.
--
-- That is the page of the first old row by id, among a bounded number of rows. The oldest rows have the lowest ids, unless they
-- were held.
--
-- $1: the retention in seconds
SELECT (place::text::point)[0]::bigint
FROM (SELECT o.ctid AS place, o.:id_column AS id, o.:sent_at_column AS sent_at FROM :outbox o ORDER BY o.:id_column LIMIT 10000)
     AS first
WHERE sent_at < (SELECT clock_timestamp() - $1::float8 * interval '1 second')
ORDER BY id
LIMIT 1;
