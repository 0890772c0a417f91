-- Reads unsent rows of the claimed lanes, in order.
--
-- At most its share of each lane, one lane after the other. The LEFT JOIN returns the versions even without rows.
--
-- $1: the lanes
-- $2: the low-water mark of each lane
-- $3: the epoch for which the low-water marks were raised
-- $4: the maximum number of rows to read
-- $5: the size in bytes of the largest record
-- $6: the maximum number of rows to read from each lane
-- $7: the transactions that the marks except
-- $8: an ID below the rows of those transactions
\set excepted $7
\set floor $8
\set is_pending true
\set is_named false
\ir ../part/read_lanes.sql
