-- Lists the topics of the latest rows, which are in use even if no event waits.
-- $1: the number of rows
-- $2: the maximum number of topics
SELECT DISTINCT left(:topic, 300)
FROM (
    SELECT aggregate_type, event_type
\if :has_topic
           , topic
\endif
    FROM :rows_with_topic AS latest
    ORDER BY id DESC
    LIMIT $1::bigint
) AS o
LIMIT $2::bigint;
