//! The statements that delete old rows of the outbox.

use super::query::Template;

const RANGE: &[&str] = &[
    "the place where the range of pages begins",
    "the place where it ends",
    "the retention in seconds",
    "the quoted name of the outbox",
];

pub(super) const REAPER: [Template; 4] = [EDGE, REAP, REAP_AROUND_LOCKS, COUNT];

/// Deletes the old rows of a range of pages. A row lock allows only one relay at a time. Only the
/// roles of the relay and the operators can take it. If a row is changed
/// concurrently, the server checks its new `sent_at`, so that an unsent or replayed row is never deleted.
pub(crate) const REAP: Template = Template {
    name: "reap",
    purpose: "deletes the old rows of a range of pages",
    params: RANGE,
    sql: "
WITH turn AS MATERIALIZED (
    SELECT FROM {reaper} WHERE singleton FOR UPDATE SKIP LOCKED
), reaped AS (
    DELETE FROM {outbox}
    WHERE ctid >= $1::text::tid AND ctid < $2::text::tid
      AND {sent_at_column} < (SELECT clock_timestamp() - $3::float8 * interval '1 second')
      AND EXISTS (SELECT FROM turn)
    RETURNING 1
)
SELECT EXISTS (SELECT FROM turn), (SELECT count(*) FROM reaped),
       pg_relation_size($4::text::regclass) / current_setting('block_size')::bigint,
       pg_relation_filenode($4::text::regclass)::bigint",
};

pub(crate) const REAP_AROUND_LOCKS: Template = Template {
    name: "reap_around_locks",
    purpose: "deletes the old, unlocked rows of a range of pages",
    params: RANGE,
    sql: "
WITH turn AS MATERIALIZED (
    SELECT FROM {reaper} WHERE singleton FOR UPDATE SKIP LOCKED
), locked AS MATERIALIZED (
    SELECT ctid AS place
    FROM {outbox}
    WHERE ctid >= $1::text::tid AND ctid < $2::text::tid
      AND {sent_at_column} < (SELECT clock_timestamp() - $3::float8 * interval '1 second')
      AND EXISTS (SELECT FROM turn)
    FOR UPDATE SKIP LOCKED
), reaped AS (
    DELETE FROM {outbox}
    WHERE ctid = ANY (ARRAY(SELECT place FROM locked))
      AND {sent_at_column} < (SELECT clock_timestamp() - $3::float8 * interval '1 second')
    RETURNING 1
)
SELECT EXISTS (SELECT FROM turn), (SELECT count(*) FROM reaped),
       pg_relation_size($4::text::regclass) / current_setting('block_size')::bigint,
       pg_relation_filenode($4::text::regclass)::bigint",
};

/// Counts the rows that [`REAP`] would delete. Takes no lock.
pub(crate) const COUNT: Template = Template {
    name: "count_old",
    purpose: "counts the old rows of a range of pages",
    params: RANGE,
    sql: "
SELECT true,
       (SELECT count(*)
        FROM {outbox}
        WHERE ctid >= $1::text::tid AND ctid < $2::text::tid
          AND {sent_at_column} < (SELECT clock_timestamp() - $3::float8 * interval '1 second')),
       pg_relation_size($4::text::regclass) / current_setting('block_size')::bigint,
       pg_relation_filenode($4::text::regclass)::bigint",
};

/// Finds the page of the first old row by id, among a bounded number of rows. The oldest rows have the lowest ids, unless
/// they were held.
pub(crate) const EDGE: Template = Template {
    name: "edge",
    purpose: "finds the page where the old rows begin",
    params: &["the retention in seconds"],
    sql: "
SELECT (place::text::point)[0]::bigint
FROM (SELECT ctid AS place, id, sent_at FROM {named_rows} ORDER BY id LIMIT 10000) AS first
WHERE sent_at < (SELECT clock_timestamp() - $1::float8 * interval '1 second')
ORDER BY id
LIMIT 1",
};
