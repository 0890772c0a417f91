-- Finds the page where the old rows begin.
--
-- That is the page of the first old row by id, among a bounded number of rows. The oldest rows have the lowest ids, unless they
-- were held.
--
-- $1: the retention in seconds
SELECT (place::text::point)[0]::bigint
FROM (SELECT ctid AS place, id, sent_at FROM :named_rows ORDER BY id LIMIT 10000) AS first
WHERE sent_at < (SELECT clock_timestamp() - $1::float8 * interval '1 second')
ORDER BY id
LIMIT 1;
