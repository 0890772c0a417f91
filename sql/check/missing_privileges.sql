-- The positions in the list of the privileges that the role lacks, on the table, on one of its columns, or on the function; -1 for
-- USAGE on the schema.
--
-- Missing relations, columns and functions are different faults.
--
-- $1: the schema
-- $2: the relations or functions
-- $3: the privileges
-- $4: the columns of each, separated by line feeds; empty for the whole table
SELECT -1::bigint FROM pg_namespace WHERE nspname = $1 AND NOT has_schema_privilege(oid, 'USAGE')
UNION ALL
SELECT wanted.at - 1
FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS wanted (relation, privilege, columns, at)
JOIN pg_namespace AS s ON s.nspname = $1
LEFT JOIN pg_class AS c ON c.relnamespace = s.oid AND c.relname = wanted.relation AND c.relkind = 'r'
LEFT JOIN pg_proc AS p ON p.pronamespace = s.oid AND p.proname = wanted.relation
WHERE CASE WHEN wanted.privilege = 'EXECUTE' THEN NOT has_function_privilege(p.oid, 'EXECUTE')
           WHEN wanted.columns = '' THEN NOT has_table_privilege(c.oid, wanted.privilege)
           ELSE EXISTS (SELECT FROM pg_attribute AS a
                        WHERE a.attrelid = c.oid AND NOT a.attisdropped
                          AND a.attname = ANY (string_to_array(wanted.columns, chr(10)))
                          AND NOT has_column_privilege(c.oid, a.attnum, wanted.privilege)) END
ORDER BY 1;
