//! The scout's statements on the whole table.

use super::conditions::Target;
use super::query::{Query, Template};

/// Lists the transactions that may still commit a row. An insert takes this lock on the table before it draws an id, and keeps
/// it until its transaction ends, even a prepared one. A writer may also draw the id in an earlier statement. `nextval` takes
/// the same lock on the sequence before it draws, and keeps it as long.
///
/// The transaction id is that of the top level, which is the lowest one of a transaction. `pg_locks` has its lower 32 bits. The
/// upper ones are those of the next transaction id, unless the difference is too large.
pub(crate) const WRITERS: Template = Template {
    name: "writers",
    purpose: "lists the transactions that may still commit a row",
    params: &["the quoted name of the outbox"],
    sql: "
SELECT s.started, s.backend, w.virtualtransaction, w.xid
FROM (
    SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, pg_backend_pid(),
           pg_snapshot_xmax(pg_current_snapshot())::text::bigint
    OFFSET 0
) AS s(started, backend, next)
LEFT JOIN LATERAL (
    SELECT l.virtualtransaction,
           s.next - 2147483648 + min((l.transactionid::text::bigint - s.next + 2147483648) & 4294967295) AS xid
    FROM pg_locks l
    WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock'
       OR l.locktype = 'relation' AND l.mode = 'RowExclusiveLock'
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.relation = ANY (ARRAY(
          SELECT $1::text::regclass::oid
          UNION ALL
          SELECT d.objid
          FROM pg_attribute a
          JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = a.attrelid
                          AND d.refobjsubid = a.attnum AND d.classid = 'pg_class'::regclass
          JOIN pg_sequence q ON q.seqrelid = d.objid
          WHERE a.attrelid = $1::text::regclass AND a.attname = {id_literal}
          UNION ALL
          SELECT d.refobjid
          FROM pg_attribute a
          JOIN pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum
          JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
                          AND d.refclassid = 'pg_class'::regclass
          JOIN pg_sequence q ON q.seqrelid = d.refobjid
          WHERE a.attrelid = $1::text::regclass AND a.attname = {id_literal}))
    GROUP BY l.virtualtransaction
    HAVING bool_or(l.locktype = 'relation')
) AS w ON true",
};

/// Whether there is an id above one. Most looks find nothing, and what a server does for a statement depends on its size.
pub(crate) const GLANCE: Template = Template {
    name: "glance",
    purpose: "finds out whether there is a new row",
    params: &["the highest known id"],
    sql: "SELECT 1 FROM {rows} o WHERE o.id > $1::bigint LIMIT 1",
};

/// Returns the newest ids above one and those of these gaps that are committed, with the lanes of the unsent rows. The newest
/// come first, because on a server with many index entries of deleted rows, the oldest would be behind all of them.
pub(super) fn look(target: Target<'_>) -> Query {
    let (rows, versions) = (target.rows(), target.versions());
    let row = "o.id, CASE WHEN o.sent_at IS NULL THEN (hashtext(o.aggregate_id) & 63)::smallint END AS lane";
    let sql = format!(
        "
SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, pg_backend_pid(),
       v.version, v.basis, n.id, n.lane
FROM {versions}
LEFT JOIN LATERAL (
    (SELECT {row} FROM {rows} o WHERE o.id > $1::bigint ORDER BY o.id DESC LIMIT $3::bigint)
    UNION ALL
    (SELECT {row} FROM {rows} o WHERE o.id = ANY ($2::bigint[]) ORDER BY o.id LIMIT $3::bigint)
) n ON true"
    );
    let params = &["the highest known id", "the gaps below it", "the maximum number of rows of each kind"];
    Query::new("look", "looks for new rows", params, sql)
}

/// Counts unsent rows up to 10,000. Above that, it returns the range of their ids, which is accurate if there are few sent
/// rows between them.
pub(crate) const BACKLOG: Template = Template {
    name: "backlog",
    purpose: "counts unsent rows, and estimates above 10,000",
    params: &["the lanes", "the low-water mark of each lane"],
    sql: "
SELECT CASE WHEN counted <= 10000 THEN counted
            ELSE greatest(counted, (SELECT id FROM {named_rows} ORDER BY id DESC LIMIT 1) - oldest + 1) END
FROM (
    SELECT count(*) AS counted, min(id) AS oldest
    FROM (
        SELECT p.id
        FROM unnest($1::smallint[], $2::bigint[]) AS l(lane, low)
        CROSS JOIN LATERAL (
            SELECT o.id
            FROM {rows} o
            WHERE (hashtext(o.aggregate_id) & 63) = ANY (ARRAY[l.lane]) AND o.sent_at IS NULL AND o.id > l.low
            ORDER BY (hashtext(o.aggregate_id) & 63), o.id
            LIMIT 10001
        ) p
        LIMIT 10001
    ) AS bounded
) AS c",
};

/// Returns the age of the oldest row among the first unsent rows of each lane, and the server's time in microseconds. Ids
/// have about the order of `created_at`.
///
/// Rows that are held, blocked or paused may be below the marks. If there are none, the marks apply. Otherwise the statement
/// would walk the index entries of all rows that were sent since the last vacuum.
///
/// A writer can store an infinite time. It is subtracted as a number of seconds, because subtracting an infinite timestamp
/// is an error before PostgreSQL 17.
pub(super) fn oldest(target: Target<'_>) -> Query {
    let (rows, versions) = (target.rows(), target.versions_if_free(&target.versions()));
    let sql = format!(
        "
SELECT max(greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM p.created_at), 0))::float8,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
FROM {versions}
CROSS JOIN unnest($1::smallint[], $2::bigint[]) AS l(lane, low)
CROSS JOIN LATERAL (
    SELECT o.created_at
    FROM {rows} o
    WHERE (hashtext(o.aggregate_id) & 63) = ANY (ARRAY[l.lane]) AND o.sent_at IS NULL
      AND o.id > CASE WHEN v.version IS NOT NULL AND v.basis = $3::bigint THEN l.low
                      ELSE -9223372036854775808 END
    ORDER BY (hashtext(o.aggregate_id) & 63), o.id
    LIMIT 1
) p"
    );
    let params =
        &["the lanes", "the low-water mark of each lane", "the basis for which the marks were raised"];
    Query::new("oldest", "returns the age of the oldest unsent row", params, sql)
}
