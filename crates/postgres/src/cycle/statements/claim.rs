//! The statements that claim lanes and read their rows.

use super::conditions::Target;
use super::query::{Query, Template};
use crate::options::OnSent;
use crate::payload::PayloadType;

/// Locks the lanes of a claim. The other columns identify the server.
pub(crate) const LOCK: Template = Template {
    name: "lock",
    purpose: "locks the lanes of a claim",
    params: &["the lanes to lock"],
    sql: "
SELECT lane,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
       pg_backend_pid()
FROM {lane}
WHERE lane = ANY($1::smallint[])
FOR UPDATE SKIP LOCKED",
};

const LANES: &str = "the lanes";
const LOWS: &str = "the low-water mark of each lane";
const BASIS: &str = "the basis for which the low-water marks were raised";
const ROWS: &str = "the maximum number of rows to read";
const BYTES: &str = "the size in bytes of the largest record";
const SHARES: &str = "the maximum number of rows to read from each lane";
const WITNESSES: &str = "the ID of a row of each key";
const HIGHEST: &str = "the highest ID read so far";
const GAPS: &str = "lower IDs that no read has returned";
const EXCEPTED: &str = "the transactions that the marks except";
const FLOOR: &str = "an ID below the rows of those transactions";
const FLOW_VERSION: &str = "the version of the holds of the flow";
const FLOW_BASIS: &str = "the basis of the flow";
const NEW_ROWS: &[&str] = &[HIGHEST, GAPS, FLOW_VERSION, FLOW_BASIS, BYTES, ROWS, LANES, EXCEPTED];
const NEW_ROWS_IF_FREE: &[&str] =
    &[HIGHEST, GAPS, FLOW_VERSION, FLOW_BASIS, BYTES, ROWS, LANES, EXCEPTED, "an id below the first gap"];

/// The reads of a claim, for one outbox.
#[derive(Clone, Copy)]
pub(super) struct Reads<'a> {
    pub(super) target: Target<'a>,
    pub(super) payload: PayloadType,
    pub(super) on_sent: OnSent,
}

impl Reads<'_> {
    /// Reads the claimed lanes one after the other, at most its share of each.
    pub(super) fn pending(self) -> Query {
        let sql = self.read(
            &self.target.versions_and_open("$7"),
            "unnest($1::smallint[], $2::bigint[], $6::bigint[]) AS l(lane, low, share)",
            &self.target.pending("$8"),
        );
        let params = &[LANES, LOWS, BASIS, ROWS, BYTES, SHARES, EXCEPTED, FLOOR];
        Query::new("read", "reads unsent rows of the claimed lanes, in order", params, sql)
    }

    /// Reads the first unsent row of each key, to probe held topics.
    pub(super) fn first_of_keys(self) -> Query {
        let sql = self.read(&self.target.versions(), OF_KEYS, &self.target.of_key());
        let params = &[LANES, LOWS, "not null", ROWS, BYTES, SHARES, WITNESSES];
        Query::new("read_first", "reads the first unsent row of each key, to probe held topics", params, sql)
    }

    /// Reads rows by id, whatever they wait for: to settle what Kafka has acknowledged, and to find out whether the server can
    /// read a row whole.
    pub(super) fn row(self) -> Query {
        let which = "(hashtext(o.aggregate_id) & 63) = ANY (ARRAY[l.lane])
    AND o.sent_at IS NULL
    AND o.id > l.low AND $3::bigint IS NOT NULL
    AND o.id = l.witness";
        let sql = self.read(&self.target.versions(), OF_KEYS, which);
        let params = &[LANES, LOWS, "not null", ROWS, BYTES, SHARES, "the ID of a row, for each lane"];
        Query::new(
            "read_row",
            "reads rows by ID, to settle a late acknowledgement or to find an unreadable row",
            params,
            sql,
        )
    }

    /// Whether there are rows that a flow has not read. Most reads of a flow find none, and cost six times as much.
    pub(super) fn peek(self) -> Query {
        let (rows, versions) = (self.target.rows(), self.target.versions_if_open("$3"));
        let sql = format!(
            "
SELECT v.version, v.basis,
       (SELECT i.id FROM {rows} i WHERE i.id > $1::bigint ORDER BY i.id LIMIT 1) IS NOT NULL
           OR (SELECT i.id FROM {rows} i WHERE i.id = ANY($2::bigint[]) ORDER BY i.id LIMIT 1) IS NOT NULL
FROM {versions}"
        );
        Query::new("peek", "finds out whether a flow has something to read", &[HIGHEST, GAPS, EXCEPTED], sql)
    }

    /// Reads what is new for a flow, by id, in one snapshot. A row that the flow may not publish has no lane and no contents:
    /// only its id is needed.
    pub(super) fn new_rows(self) -> Query {
        let pause = self.target.table.pause();
        let (not_held, not_blocked) = (self.target.not_held(), self.target.not_blocked());
        let waits = format!(
            "
                            AND NOT EXISTS (SELECT FROM {pause} WHERE topic IS NULL AND aggregate_id IS NULL)
                            AND {not_held}
                            AND {not_blocked}"
        );
        let sql = self.new_rows_with(&self.target.versions_if_open("$8"), &waits);
        Query::new("read_new", "reads new rows during a flow", NEW_ROWS, sql)
    }

    /// The same, if nothing is held, blocked or paused, no row is large, and the gaps are close to the highest id. It adds
    /// a third as much to the cost of a round trip, because the server prepares fewer conditions and scans one index range.
    ///
    /// If something is held, blocked or paused, the version is NULL and no rows are returned. A large row has a lane and a
    /// size, but no contents. So has a row whose size is NULL, because a column has lost its NOT NULL.
    pub(super) fn new_rows_if_free(self) -> Query {
        let versions = self.target.versions_if_free(&self.target.versions_if_open("$8"));
        let rows = self.target.rows();
        let ctid = if self.on_sent == OnSent::Delete { ", i.ctid" } else { "" };
        let length = self.payload.length_sql("i.payload");
        let is_ours = "i.sent_at IS NULL AND (hashtext(i.aggregate_id) & 63) = ANY($7::smallint[])";
        let topic = if self.target.topics.column {
            format!(", CASE WHEN {is_ours} THEN left(i.topic, 300) END AS outbox_relay_topic")
        } else {
            String::new()
        };
        let sql = format!(
            "
SELECT v.version, v.basis, r.id, r.lane, r.event_id,
       CASE WHEN r.is_small THEN r.aggregate_type END,
       CASE WHEN r.is_small THEN r.aggregate_id END,
       CASE WHEN r.is_small THEN r.event_type END,
       CASE WHEN r.is_small THEN r.payload END,
       CASE WHEN r.lane IS NOT NULL AND r.is_small IS NOT TRUE THEN 0::bigint END,
       CASE WHEN r.is_small THEN r.headers END,
       r.created_at{r_ctid}{r_topic}
FROM {versions}
LEFT JOIN LATERAL (
    SELECT i.id, i.event_id, i.aggregate_type, i.aggregate_id, i.event_type, i.payload, i.headers, i.created_at{ctid}{topic},
           CASE WHEN {is_ours} THEN (hashtext(i.aggregate_id) & 63)::smallint END AS lane,
           CASE WHEN {is_ours}
                THEN coalesce({length}, 0)::bigint + octet_length(i.aggregate_id) + octet_length(i.event_type)
                        + octet_length(i.aggregate_type) <= $5::integer
                    AND (i.headers IS NULL
                        OR pg_column_size(i.headers) <= 2000 AND pg_column_compression(i.headers) IS NULL)
           END AS is_small
    FROM {rows} i
    WHERE i.id > $9::bigint
        AND (i.id > $1::bigint OR i.id = ANY($2::bigint[]))
        AND v.version = $3::bigint AND v.basis = $4::bigint
    ORDER BY i.id
    LIMIT $6::bigint
) r ON true",
            r_ctid = if ctid.is_empty() { "" } else { ", r.ctid" },
            r_topic = if topic.is_empty() { "" } else { ", r.outbox_relay_topic" },
        );
        let purpose =
            "reads new rows during a flow if nothing is held, blocked or paused, and no row is large";
        Query::new("read_new_if_free", purpose, NEW_ROWS_IF_FREE, sql)
    }

    fn new_rows_with(self, versions: &str, waits: &str) -> String {
        let outbox = self.target.rows();
        let columns = "i.*, i.ctid AS outbox_relay_place";
        let version = "v.version = $3::bigint AND v.basis = $4::bigint";
        let rows = format!(
            "(
            SELECT o.*,
                   CASE WHEN o.sent_at IS NULL
                            AND (hashtext(o.aggregate_id) & 63) = ANY($7::smallint[]){waits}
                        THEN (hashtext(o.aggregate_id) & 63)::smallint END AS outbox_relay_lane
            FROM (
                (SELECT {columns} FROM {outbox} i WHERE i.id = ANY($2::bigint[]) AND {version})
                UNION ALL
                (SELECT {columns} FROM {outbox} i WHERE i.id > $1::bigint AND {version}
                 ORDER BY i.id LIMIT $6::bigint)
            ) o
        ) o"
        );
        let from = From {
            rows: &rows,
            lane: "o.outbox_relay_lane",
            place: "o.outbox_relay_place",
            is_read: "p.lane IS NOT NULL AND ",
            skips: "WHEN o.outbox_relay_lane IS NULL THEN NULL\n                   ",
        };
        let order = "ORDER BY o.id
        LIMIT $6::bigint";
        self.read_from(versions, "(SELECT) l", &from, order, "")
    }

    /// Reads the rows of `lanes` that match `which`. The LEFT JOIN returns the versions even without rows.
    ///
    /// A row that is too large for a record is read without its large values. The types that determine its topic are cut to a
    /// length that is too long for a topic. Its key is cut only if the key alone is too large.
    ///
    /// `too_large` is the size of such a row in bytes, else NULL. It is never larger than the record would be, so that the
    /// relay does not reject a row that Kafka might accept:
    ///
    /// - The server knows the length of a text without reading it.
    /// - It does not know the length of jsonb. Headers that are stored uncompressed in few bytes are small. Others are
    ///   measured in uncompressed binary form (`#> '{}'` only uncompresses), because the text of jsonb could exceed the
    ///   server's limit of 1 GB and fail the read. The binary form has up to three times as many bytes as a record, hence
    ///   the division by 4.
    ///
    /// Large headers are returned only if they are an object of strings and of objects of strings, because a number of a few
    /// bytes can have 131,072 digits. Other headers are invalid, and the read returns `[]` instead.
    fn read(self, versions: &str, lanes: &str, which: &str) -> String {
        let rows = format!("{} o", self.target.rows());
        let order = format!(
            "WHERE {which}
        ORDER BY (hashtext(o.aggregate_id) & 63), o.id
        LIMIT l.share"
        );
        let from = From { rows: &rows, lane: "l.lane", place: "o.ctid", is_read: "", skips: "" };
        self.read_from(versions, lanes, &from, &order, "\n    LIMIT $4::bigint")
    }

    fn read_from(self, versions: &str, lanes: &str, from: &From<'_>, order: &str, limit: &str) -> String {
        let From { rows, lane, place, is_read, skips } = from;
        let (place, p_place) = match self.on_sent {
            OnSent::Mark => (String::new(), ""),
            OnSent::Delete => (format!(", {place} AS outbox_relay_place"), ", p.outbox_relay_place"),
        };
        let topics = self.target.topics;
        let event_type_if_large =
            if topics.template.has_event_type() { " ELSE left(p.event_type, 300)" } else { "" };
        let (topic, p_topic) = match topics.column {
            true => (
                ", o.topic",
                format!(", CASE WHEN {is_read}true THEN left(p.topic, 300) END AS outbox_relay_topic"),
            ),
            false => ("", String::new()),
        };
        let length = self.payload.length_sql("o.payload");
        let texts = format!(
            "(coalesce({length}, 0)::bigint + octet_length(o.aggregate_id) + octet_length(o.event_type))"
        );
        let headers_large =
            "(pg_column_size(o.headers) > 2000 OR pg_column_compression(o.headers) IS NOT NULL)";
        let headers_length =
            "CASE WHEN pg_column_size(o.headers) / 4 > $5::integer THEN pg_column_size(o.headers)
                       ELSE pg_column_size(o.headers #> '{}') END";
        // The members of a value that is not an object are none.
        const NOT_TEXTS: &str = r#"$.* ? (@.type() <> "string" && (@.type() <> "object" || exists(@.* ? (@.type() <> "string"))))"#;
        format!(
            "
SELECT v.version, v.basis, r.*
FROM {versions}
LEFT JOIN LATERAL (
    SELECT p.id, p.lane, p.event_id,
           CASE WHEN {is_read}p.too_large IS NULL THEN p.aggregate_type ELSE left(p.aggregate_type, 300) END,
           CASE WHEN {is_read}(p.too_large IS NULL OR octet_length(p.aggregate_id) <= $5::integer) THEN p.aggregate_id
                ELSE left(p.aggregate_id, 300) END,
           CASE WHEN {is_read}p.too_large IS NULL THEN p.event_type{event_type_if_large} END,
           CASE WHEN {is_read}p.too_large IS NULL THEN p.payload END,
           p.too_large,
           CASE WHEN {is_read}p.too_large IS NULL THEN p.headers END,
           p.created_at{p_place}{p_topic}
    FROM {lanes}
    CROSS JOIN LATERAL (
        SELECT o.id, {lane} AS lane, o.event_id, o.aggregate_type, o.aggregate_id, o.event_type, o.payload,
               CASE
                   {skips}WHEN {texts} > $5::integer OR octet_length(o.aggregate_type) > $5::integer
                       OR {headers_large} AND {headers_length} / 4 > $5::integer
                   THEN {texts} + octet_length(o.aggregate_type) + coalesce({headers_length}, 0)
               END AS too_large,
               CASE
                   {skips}WHEN {headers_large}
                       AND (jsonb_typeof(o.headers) <> 'object' OR o.headers @? '{NOT_TEXTS}')
                   THEN '[]'
                   ELSE o.headers
               END AS headers,
               o.created_at{place}{topic}
        FROM {rows}
        {order}
    ) p{limit}
) r ON true"
        )
    }

    /// Reads the first row that the claim's read would return, without columns that may be large or damaged. The payload is
    /// NULL and `too_large` is set, so that the row cannot be mistaken for a tombstone.
    pub(super) fn head(self) -> Query {
        let (rows, versions) = (self.target.rows(), self.target.versions_and_open("$4"));
        let pending = self.target.pending("$5");
        let ctid = if self.on_sent == OnSent::Delete { ", o.ctid" } else { "" };
        let topic = if self.target.topics.column { ", left(o.topic, 300) AS outbox_relay_topic" } else { "" };
        let event_type = if self.target.topics.template.has_event_type() {
            "left(o.event_type, 300)"
        } else {
            "NULL::text"
        };
        let sql = format!(
            "
SELECT v.version, v.basis, p.*
FROM {versions}
CROSS JOIN unnest($1::smallint[], $2::bigint[]) AS l(lane, low)
LEFT JOIN LATERAL (
    SELECT o.id, l.lane AS lane, o.event_id, left(o.aggregate_type, 300), left(o.aggregate_id, 300), {event_type},
           NULL::json, 0::bigint, NULL::jsonb, o.created_at{ctid}{topic}
    FROM {rows} o
    WHERE {pending}
    ORDER BY (hashtext(o.aggregate_id) & 63), o.id
    LIMIT 1
) p ON true"
        );
        let purpose = "reads the first pending row of each lane, without its payload and headers";
        Query::new("read_head", purpose, &[LANES, LOWS, BASIS, EXCEPTED, FLOOR], sql)
    }
}

/// Where a read finds its rows `o`, and what it returns of them.
struct From<'a> {
    rows: &'a str,
    lane: &'a str,
    place: &'a str,
    /// A condition, with AND, for the rows whose contents are read.
    is_read: &'a str,
    /// A branch of CASE for the other rows, whose contents must not be evaluated.
    skips: &'a str,
}

/// Like the claimed lanes, but with one entry per key.
const OF_KEYS: &str =
    "unnest($1::smallint[], $2::bigint[], $6::bigint[], $7::bigint[]) AS l(lane, low, share, witness)";

/// Finds the first pending row of each lane, with one index probe per lane.
pub(super) fn scan(target: Target<'_>) -> Query {
    let (rows, versions, pending) = (target.rows(), target.versions_and_open("$4"), target.pending("$5"));
    let sql = format!(
        "
SELECT l.lane, p.id,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
       pg_backend_pid(), v.basis
FROM {versions}
CROSS JOIN unnest($1::smallint[], $2::bigint[]) AS l(lane, low)
LEFT JOIN LATERAL (
    SELECT o.id
    FROM {rows} o
    WHERE {pending}
    ORDER BY (hashtext(o.aggregate_id) & 63), o.id
    LIMIT 1
) p ON true"
    );
    Query::new("scan", "finds the lanes that have pending rows", &[LANES, LOWS, BASIS, EXCEPTED, FLOOR], sql)
}
