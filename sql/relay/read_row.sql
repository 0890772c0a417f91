-- Reads rows by ID, to settle a late acknowledgement or to find an unreadable row.
--
-- It reads a row even if it is held, blocked or paused.
--
-- $1: the lanes
-- $2: the low-water mark of each lane
-- $3: not null
-- $4: the maximum number of rows to read
-- $5: the size in bytes of the largest record
-- $6: the maximum number of rows to read from each lane
-- $7: the ID of a row, for each lane
\set is_pending false
\set is_named true
\ir ../part/read_lanes.sql
