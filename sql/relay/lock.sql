-- Locks the lanes of a claim.
--
-- The other columns identify the server.
--
-- $1: the lanes to lock
SELECT lane,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
       pg_backend_pid()
FROM :lane
WHERE lane = ANY($1::smallint[])
FOR UPDATE SKIP LOCKED;
