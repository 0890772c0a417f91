-- The triggers that do not exist or do not fire in ordinary sessions, and the function that records replays if it is needed and
-- does not exist.
--
-- Triggers that are enabled as O or A fire in ordinary sessions.
--
-- $1: the schema
-- $2: the tables
-- $3: the trigger of each
-- $4: the function of the triggers
-- $5: the function that records replays
-- $6: whether it is needed
SELECT $5::text, NULL
WHERE $6::boolean AND NOT EXISTS (
    SELECT FROM pg_proc AS p JOIN pg_namespace AS s ON s.oid = p.pronamespace WHERE s.nspname = $1 AND p.proname = $5)
UNION ALL
SELECT a.relation, a.trigger
FROM unnest($2::text[], $3::text[]) AS a (relation, trigger)
WHERE NOT EXISTS (
    SELECT FROM pg_trigger AS t
    JOIN pg_class AS c ON c.oid = t.tgrelid JOIN pg_namespace AS s ON s.oid = c.relnamespace
    JOIN pg_proc AS p ON p.oid = t.tgfoid
    WHERE s.nspname = $1 AND c.relname = a.relation AND t.tgname = a.trigger AND t.tgenabled IN ('O', 'A')
      AND p.proname = $4);
