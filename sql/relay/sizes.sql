-- The sizes of tables, the age of the oldest transaction ID of the outbox or the database, and the number of lanes.
--
-- The lock that it takes conflicts only with ACCESS EXCLUSIVE.
--
-- $1: the quoted name of the outbox
-- $2: the quoted names of the tables
SELECT array(SELECT coalesce(pg_total_relation_size(to_regclass(t.name)), 0)
             FROM unnest($2::text[]) WITH ORDINALITY AS t(name, place) ORDER BY t.place),
       greatest(age(c.relfrozenxid), age(d.datfrozenxid))::bigint,
       (SELECT count(*) FROM :lane WHERE lane BETWEEN 0 AND 63)
FROM pg_class AS c, pg_database AS d
WHERE c.oid = $1::text::regclass AND d.datname = current_database();
