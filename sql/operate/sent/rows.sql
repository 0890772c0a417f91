-- Reads the rows of the outbox by id, sent or not. The first columns are those of the relay's read, so that a row becomes the same
-- event. Only selected rows are read whole, unless they are too large for a record. As in the read of the relay, the binary form of
-- headers has up to three times as many bytes as a record, hence the division by 4.
--
-- The server must decompress and print a jsonb to know its length. Therefore, the stored sizes limit the batch first, and the
-- lengths of the rows that are left limit it again. OFFSET 0 keeps the planner from moving the lengths into the outer queries, where
-- each would be computed several times.
--
-- $1 to $7: the selection, see selected.sql
-- $8: the last id of the previous batch
-- $9: the highest id
-- $10: the size of a batch in bytes; the batch ends with the row that exceeds it, by its lengths or by its stored sizes
-- $11: the size of the largest record in bytes
-- $12: the maximum number of rows
SELECT 0::bigint, 0::bigint, p.id, 0::smallint, p.event_id,
       CASE WHEN p.is_read THEN p.aggregate_type END,
       CASE WHEN p.is_read THEN p.aggregate_id END,
       CASE WHEN p.is_read THEN p.event_type END,
       CASE WHEN NOT p.is_too_large THEN p.payload END,
       CASE WHEN p.is_too_large THEN p.texts + p.headers_bytes END,
       CASE WHEN NOT p.is_too_large THEN p.headers END,
       p.created_at, p.is_in_range, p.is_read, p.sent_at
\if :has_topic
       , CASE WHEN p.is_read THEN p.row_topic END AS outbox_relay_topic
\endif
FROM (
    SELECT m.*, m.texts > $11::bigint OR m.headers_bytes / 4 > $11::bigint AS is_too_large,
           coalesce(sum(m.texts + m.headers_bytes)
                    OVER (ORDER BY m.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
    FROM (
        SELECT o.*,
               CASE WHEN o.is_read
                    THEN coalesce(:payload_length, 0)::bigint + octet_length(o.aggregate_id) + octet_length(o.event_type)
               END AS texts,
               CASE WHEN o.is_read THEN coalesce(pg_column_size(o.headers #> '{}'), 0) END AS headers_bytes
        FROM (
            SELECT s.*, coalesce(sum(CASE WHEN s.is_read
                                          THEN coalesce(pg_column_size(s.payload), 0)::bigint
                                               + coalesce(pg_column_size(s.headers), 0)
                                               + octet_length(s.aggregate_id) + octet_length(s.event_type)
                                     END) OVER (ORDER BY s.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)
                            AS stored_before
            FROM (
                SELECT :whole_event,
\if :has_topic
                       left(o.:topic_column, 300) AS row_topic,
\endif
                       CASE WHEN isfinite(o.:sent_at_column) THEN o.:sent_at_column END AS sent_at,
                       coalesce(:in_range, false) AS is_in_range,
                       :selected AS is_read
                FROM :outbox o
                WHERE o.:id_column > $8::bigint AND o.:id_column <= $9::bigint
                ORDER BY o.:id_column
                LIMIT $12::bigint
            ) s
        ) o
        WHERE o.stored_before < $10::bigint
        OFFSET 0
    ) m
) p
WHERE p.before < $10::bigint
ORDER BY p.id;
