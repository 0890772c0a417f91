-- The conditions of the options of `verify` and `replay`, on a row o of the outbox itself.
--
-- :sent_only also excludes unsent rows.
-- $1: from this time on, or NULL
-- $2: before this time, or NULL
-- $3: the topic, or NULL
-- $4: the key, or NULL
-- $5: the event ids, or NULL
-- $6: whether the times are those of created_at instead of sent_at
-- $7: sent before this time, whatever the range applies to, or NULL
\if :sent_only
(o.:sent_at_column IS NOT NULL AND ($7::timestamptz IS NULL OR o.:sent_at_column < $7) AND
\endif
(
    ($1::timestamptz IS NULL OR CASE WHEN $6::boolean THEN o.:created_at_column ELSE o.:sent_at_column END >= $1)
    AND ($2::timestamptz IS NULL OR CASE WHEN $6 THEN o.:created_at_column ELSE o.:sent_at_column END < $2)
    AND ($3::text IS NULL OR :topic = $3)
    AND ($4::text IS NULL OR o.:aggregate_id_column = $4)
    AND ($5::uuid[] IS NULL OR o.:event_id_column = ANY ($5))
)
\if :sent_only
)
\endif
