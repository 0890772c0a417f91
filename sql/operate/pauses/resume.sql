-- Ends the pause of a scope, or all pauses.
-- $1: the topic, or NULL
-- $2: the aggregate type, or NULL
-- $3: the key, or NULL
-- $4: whether to end all pauses
WITH ended AS (
    DELETE FROM :pause p
    WHERE $4::boolean OR (p.topic, p.aggregate_type, p.aggregate_id) IS NOT DISTINCT FROM ($1::text, $2::text, $3::text)
    RETURNING id
)
SELECT count(*) FROM ended;
