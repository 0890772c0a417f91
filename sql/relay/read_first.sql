-- Reads the first unsent row of each key, to probe held topics.
--
-- Like the claimed lanes, but with one entry per key: the unsent rows with the topic and the key of the row l.example, unless they
-- are paused or blocked. A hold does not exclude them, because they are used to probe it.
--
-- $1: the lanes
-- $2: the low-water mark of each lane
-- $3: not null
-- $4: the maximum number of rows to read
-- $5: the size in bytes of the largest record
-- $6: the maximum number of rows to read from each lane
-- $7: the ID of a row of each key
\set is_pending false
\set is_named false
\ir ../part/read_lanes.sql
