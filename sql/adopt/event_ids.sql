-- Gives existing rows an event_id, in the order of their IDs, 5,000 per transaction. The columns are qualified, because one may be
-- named like the variable.
DO $$
#variable_conflict use_variable
DECLARE
    last bigint := (SELECT min(o.{id_column}) FROM {outbox} o);
BEGIN
    WHILE last IS NOT NULL LOOP
        UPDATE {outbox} o SET {event_id_column} = pg_catalog.gen_random_uuid()
        WHERE o.{id_column} >= last AND o.{event_id_column} IS NULL
          AND o.{id_column} <= (SELECT max(b.id) FROM (SELECT o.{id_column} AS id FROM {outbox} o WHERE o.{id_column} >= last
                                                  ORDER BY o.{id_column} LIMIT 5000) AS b);
        COMMIT;
        last := (SELECT o.{id_column} FROM {outbox} o WHERE o.{id_column} >= last
                 ORDER BY o.{id_column} OFFSET 5000 LIMIT 1);
    END LOOP;
END $$;
