-- Inserts an event: SELECT {enqueue}('order', '42', 'OrderPlaced', '{"total": 12}'). If event_id is NULL, it is generated,
-- because many drivers cannot omit an argument. The arguments have the names of the columns, so the body uses $n.
-- RETURNING would need the privilege SELECT, so the body has none.
CREATE FUNCTION {enqueue}(
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    payload        {payload_type}  DEFAULT NULL,
    headers        jsonb DEFAULT NULL,
    event_id       uuid  DEFAULT NULL
) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    WITH event AS MATERIALIZED (
        SELECT coalesce($6, pg_catalog.gen_random_uuid()) AS id
    ), inserted AS (
        INSERT INTO {outbox} ({aggregate_type_column}, {aggregate_id_column}, {event_type_column}, {payload_column}, {headers_column}, {event_id_column})
        SELECT $1, $2, $3, $4, $5, event.id FROM event
    )
    SELECT event.id FROM event
$$;
