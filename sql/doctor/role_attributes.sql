-- Returns the attributes that take from the role what the relay does not need. It may need BYPASSRLS.
SELECT concat_ws(' ', CASE WHEN rolcreaterole THEN 'NOCREATEROLE' END, CASE WHEN rolcreatedb THEN 'NOCREATEDB' END,
                 CASE WHEN rolreplication THEN 'NOREPLICATION' END)
FROM pg_roles
WHERE rolname = current_user;
