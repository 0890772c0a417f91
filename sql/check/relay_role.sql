-- The relay's role, if the connected one belongs to its operators.
SELECT r.rolname::text FROM pg_roles AS r JOIN pg_roles AS o ON o.rolname = r.rolname || '_operator'
WHERE pg_has_role(o.oid, 'MEMBER') AND r.rolname <> current_user
  AND NOT EXISTS (SELECT FROM pg_roles AS me WHERE me.rolname = current_user AND me.rolsuper)
LIMIT 1;
