-- Pauses a scope. Inserts nothing if the same pause exists.
-- $1: the topic, or NULL
-- $2: the aggregate type, or NULL
-- $3: the key, or NULL
-- $4: the reason of the operator, or NULL
WITH begun AS (
    INSERT INTO :pause (topic, aggregate_type, aggregate_id, reason)
    SELECT $1::text, $2::text, $3::text, $4::text
    WHERE NOT EXISTS (
        SELECT FROM :pause p
        WHERE (p.topic, p.aggregate_type, p.aggregate_id) IS NOT DISTINCT FROM ($1::text, $2::text, $3::text)
    )
    RETURNING id
)
SELECT count(*) FROM begun;
