-- Child tables, rules and nondeterministic collations of the outbox.
--
-- Children: their rows are found through the parent, but not with the parent's indexes, and the reaper does not see their pages
-- (PostgreSQL manual, "Inheritance").
-- Rules: they replace the relay's UPDATE or DELETE, or the INSERT of a requeued event (PostgreSQL manual, "Rules on INSERT, UPDATE,
-- and DELETE").
--
-- $1: the OID of the outbox
-- $2: the columns that statements compare or hash
SELECT 'child', i.inhrelid::regclass::text FROM pg_inherits AS i WHERE i.inhparent = $1
UNION ALL
SELECT 'rule', quote_ident(r.rulename) FROM pg_rewrite AS r
WHERE r.ev_class = $1 AND (r.ev_type IN ('2', '4') OR r.ev_type = '3' AND r.is_instead) AND r.ev_enabled IN ('O', 'A')
UNION ALL
SELECT 'collation', a.attname::text FROM pg_attribute AS a JOIN pg_collation AS c ON c.oid = a.attcollation
WHERE a.attrelid = $1 AND a.attname = ANY ($2) AND NOT a.attisdropped AND NOT c.collisdeterministic
ORDER BY 1, 2;
