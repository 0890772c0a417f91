-- Finds out whether there is a new row.
--
-- Most looks find nothing, and what a server does for a statement depends on its size.
--
-- $1: the highest known id
SELECT 1 FROM :rows o WHERE o.id > $1::bigint LIMIT 1;
