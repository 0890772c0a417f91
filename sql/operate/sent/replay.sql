-- Sets selected rows back to unsent, and records it. The UPDATE checks the selection again under the lock of the row: the reaper may
-- have deleted it. Deleting no hold fires the statement trigger that counts ended holds, so that the low-water marks of the relays
-- become invalid in the same snapshot in which the rows become visible.
-- $1 to $7: the selection, see selected.sql
-- $8: the ids
-- $9: the reason of the operator
WITH replayed AS (
    UPDATE :outbox o SET :sent_at_column = NULL
    WHERE o.:id_column = ANY ($8::bigint[]) AND :selected
    RETURNING o.:id_column AS id, o.:event_id_column AS event_id, o.:aggregate_type_column AS aggregate_type,
              :topic AS topic
), recorded AS MATERIALIZED (
    SELECT :record_act('replay', array_agg(id::bigint ORDER BY id), array_agg(event_id ORDER BY id),
                        array_agg(aggregate_type::text ORDER BY id), array_agg(topic::text ORDER BY id), $9::text)
    FROM replayed
), marks_invalidated AS (
    DELETE FROM :hold WHERE false
)
SELECT topic, count(*) FROM replayed CROSS JOIN recorded GROUP BY topic;
