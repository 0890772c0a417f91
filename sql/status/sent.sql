-- Returns the latency of the latest sent rows by id, among the latest rows of the table and the latest rows before the first unsent
-- one. created_at is the start of the transaction of the writer, sent_at the time of the settlement.
-- $1: the maximum number of rows
-- $2: the first unsent row that can be sent now, or NULL
WITH latest AS (
    (SELECT id, created_at, sent_at FROM :named_rows ORDER BY id DESC LIMIT $1::bigint)
    UNION
    (SELECT id, created_at, sent_at FROM :named_rows WHERE id < $2::bigint ORDER BY id DESC LIMIT $1::bigint)
), sent AS (
    SELECT sent_at, greatest(extract(epoch FROM sent_at) - extract(epoch FROM created_at), 0)::float8 AS took
    FROM latest
    WHERE sent_at IS NOT NULL
    ORDER BY id DESC
    LIMIT $1::bigint
)
SELECT count(*),
       percentile_cont(0.5) WITHIN GROUP (ORDER BY took), percentile_cont(0.95) WITHIN GROUP (ORDER BY took),
       percentile_cont(0.99) WITHIN GROUP (ORDER BY took), max(took),
       (extract(epoch FROM clock_timestamp()) - extract(epoch FROM max(sent_at)))::float8
FROM sent;
