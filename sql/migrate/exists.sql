-- Whether there is a relation of this name.
--
-- The system catalogs need no privileges, so that a missing table and a missing privilege can be distinguished.
--
-- $1: the schema
-- $2: the relation
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS s ON s.oid = c.relnamespace
    WHERE s.nspname = $1 AND c.relname = $2);
