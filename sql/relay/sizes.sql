-- The sizes of tables, the age of the oldest transaction ID that is not frozen in any database, and the number of lanes.
--
-- The lock that it takes conflicts only with ACCESS EXCLUSIVE. PostgreSQL ignores a database whose DROP was interrupted.
--
-- $1: the quoted names of the tables
SELECT array(SELECT coalesce(pg_total_relation_size(to_regclass(t.name)), 0)
             FROM unnest($1::text[]) WITH ORDINALITY AS t(name, place) ORDER BY t.place),
       (SELECT max(age(datfrozenxid)) FROM pg_database WHERE datconnlimit <> -2)::bigint,
       (SELECT count(*) FROM :lane WHERE lane BETWEEN 0 AND 63);
