-- Inserts the oldest selected dead letters into the outbox again. The highest id is that of the beginning of the command, so that
-- an event that is rejected again is not requeued repeatedly. The UPDATE checks the selection again under the lock of the row, so
-- that two operators do not requeue a dead letter twice.
-- An event keeps its values, including created_at, except for headers that the operator corrects. Its row has a new id, after the
-- other rows of its key. If headers are corrected, the history shows it: the trigger records the name of the application.
-- $1 to $8: the selection, see operate/selected.sql
-- $9: the last id of the previous batch
-- $10: the highest id
-- $11: the maximum number of rows
-- $12 to $15: the changes of the headers, see part/changed_headers.sql
\set stringify $12
\set dropped $13
\set added $14
\set bad_header $15
WITH picked AS MATERIALIZED (
    SELECT s.id
    FROM :dead_letter s
    WHERE :selected AND s.id > $9::bigint AND s.id <= $10::bigint
    ORDER BY s.id
    LIMIT $11::bigint
),
\if :changes_headers
noted AS MATERIALIZED (
    SELECT set_config('application_name', left(current_setting('application_name'), 44) || ', headers corrected', true)
),
\endif
requeued AS (
    UPDATE :dead_letter s SET requeued_at = now()
    WHERE s.id = ANY (ARRAY(SELECT id FROM picked)) AND :selected
\if :changes_headers
      AND EXISTS (SELECT FROM noted)
\endif
    RETURNING s.*
), inserted AS (
    INSERT INTO :outbox (:event_id_column, :aggregate_type_column, :aggregate_id_column, :event_type_column,
                         :payload_column, :headers_column, :created_at_column
\if :has_topic
                         , :topic_column
\endif
    )
    SELECT event_id, aggregate_type, aggregate_id, event_type, :payload_of_bytes,
\if :changes_headers
           :changed_headers,
\else
           headers,
\endif
           created_at
\if :has_topic
           , row_topic
\endif
    FROM requeued
    ORDER BY id
)
SELECT (SELECT count(*) FROM requeued), 0::bigint, (SELECT max(id) FROM picked);
