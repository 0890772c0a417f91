-- The server, the database and the role.
SELECT current_setting('server_version_num')::integer, current_setting('server_version'), pg_is_in_recovery(),
       d.datname::text, current_user::text, r.rolsuper, pg_encoding_to_char(d.encoding)::text
FROM pg_database AS d CROSS JOIN pg_roles AS r
WHERE d.datname = current_database() AND r.rolname = current_user;
