//! The statements of the cycle, with the names of one outbox filled in.

use crate::config::OnSent;
use crate::postgres::payload::PayloadType;
use crate::postgres::table::TableName;
use pg_outbox::topic::TopicTemplate;

/// One outbox as SQL.
#[derive(Clone, Debug)]
pub struct Statements {
    /// The type of the payload column.
    pub payload: PayloadType,
    /// Whether settled rows are marked or deleted.
    pub on_sent: OnSent,
    /// No record is larger: of a row that is, nothing large is fetched.
    pub record_bytes_max: i32,
    table: TableName,
    template: TopicTemplate,
    pub(crate) lock: String,
    pub(crate) read: String,
    pub(crate) read_first: String,
    pub(crate) read_head: String,
    pub(crate) read_row: String,
    pub(crate) mark: String,
    pub(crate) mark_around_locks: String,
    pub(crate) delete: String,
    pub(crate) delete_around_locks: String,
    pub(crate) dead_letter: String,
    pub(crate) hold: String,
    pub(crate) block: String,
    pub(crate) witnesses: String,
    pub(crate) look: String,
    pub(crate) writers: String,
    pub(crate) backlog: String,
    pub(crate) oldest: String,
}

/// Owns the lanes. What it returns beside them tells which server answered.
const LOCK: &str = "
SELECT lane,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
       pg_backend_pid()
FROM {lane}
WHERE lane = ANY($1::smallint[])
FOR UPDATE SKIP LOCKED";

/// Which unsent rows may be read: above the mark, not of a topic that is held or paused, and not of a key that is blocked
/// or paused. A mark is valid only for the basis under which it was raised, so the basis decides in the same snapshot. If everything is paused, there is no row above what is asked for: so the index is not read,
/// and no node of the plan looks at each row for it. The topics are an array that is read once; NOT EXISTS for each row
/// costs five times as much.
const PENDING: &str = "
    (hashtext(o.aggregate_id) & 63) = l.lane
    AND o.sent_at IS NULL
    AND o.id > CASE WHEN {all_paused} THEN 9223372036854775807
                    WHEN v.basis = $3::bigint THEN l.low
                    ELSE -9223372036854775808 END
    AND {not_held}
    AND {not_blocked}";

/// The versions of the set of holds, blocked keys and pauses. A mark goes by the basis, which changes when a hold, a block
/// or a pause ends, and when the table gets another file: TRUNCATE, a rewrite, another table of that name. Computed once.
const VERSIONS: &str = "(
    SELECT version, (removals << 32) | pg_relation_filenode({outbox_literal}::regclass)::bigint AS basis FROM {hold_version} OFFSET 0
) v";

/// Which row a held topic is probed with: the first unsent one of the key of its witness. None if it is paused.
const FIRST_OF_KEY: &str = "
    (hashtext(o.aggregate_id) & 63) = l.lane
    AND o.sent_at IS NULL
    AND o.id > l.low AND $3::bigint IS NOT NULL
    AND {of_key_of_row}
    AND {not_paused}
    AND {not_blocked}";

/// Everything is paused. It names no row, so the server asks it once for all lanes.
const ALL_PAUSED: &str = "EXISTS (SELECT FROM {pause} WHERE topic IS NULL AND aggregate_id IS NULL)";

/// The topic of this row, or everything, is not paused.
const NOT_PAUSED: &str = "NOT EXISTS (
        SELECT FROM {pause} b WHERE b.aggregate_id IS NULL AND (b.topic IS NULL OR b.topic = {topic_of_row}))";

/// The key of this row is not paused.
const KEY_NOT_PAUSED: &str = "NOT EXISTS (
        SELECT FROM {pause} b
        WHERE hashtext(b.aggregate_id) = hashtext(o.aggregate_id) AND b.aggregate_id = o.aggregate_id{of_type})";

/// The key of this row is not blocked.
const KEY_NOT_BLOCKED: &str = "NOT EXISTS (
        SELECT FROM {blocked_key} b
        WHERE hashtext(b.aggregate_id) = hashtext(o.aggregate_id) AND b.aggregate_id = o.aggregate_id{of_type})";

/// Whether the key of this row is neither blocked nor paused. That none is, is asked once.
const NOT_BLOCKED: &str = "(NOT EXISTS (
        SELECT 1 FROM {blocked_key} UNION ALL SELECT 1 FROM {pause} WHERE aggregate_id IS NOT NULL)
    OR {key_not_blocked}
    AND {key_not_paused})";

/// Reads the lanes one after the other, of each at most its share. The LEFT JOIN gives the version even if no row is
/// pending.
///
/// Of a row that no record can hold, nothing large is fetched: the beginning of its type, which names its topic or is
/// too long to name one; its key, unless that alone is too large.
const READ: &str = "
SELECT v.version, v.basis, r.*
FROM {versions}
LEFT JOIN LATERAL (
    SELECT p.id, p.lane, p.event_id,
           CASE WHEN p.too_large IS NULL THEN p.aggregate_type ELSE left(p.aggregate_type, 300) END,
           CASE WHEN p.too_large IS NULL OR octet_length(p.aggregate_id) <= $5::integer THEN p.aggregate_id
                ELSE left(p.aggregate_id, 300) END,
           CASE WHEN p.too_large IS NULL THEN p.event_type END,
           CASE WHEN p.too_large IS NULL THEN p.payload END,
           p.too_large,
           CASE WHEN p.too_large IS NULL THEN p.headers END,
           p.created_at{p_ctid}
    FROM {lanes}
    CROSS JOIN LATERAL (
        SELECT o.id, l.lane, o.event_id, o.aggregate_type, o.aggregate_id, o.event_type, o.payload,
               {too_large} AS too_large,
               {headers_read} AS headers,
               o.created_at{ctid}
        FROM {outbox} o
        WHERE {pending}
        ORDER BY (hashtext(o.aggregate_id) & 63), o.id
        LIMIT l.share
    ) p
    LIMIT $4::bigint
) r ON true";

/// One row, whole, as [`READ`] reads it: whether it can be read at all.
const THIS_ROW: &str = "
    (hashtext(o.aggregate_id) & 63) = l.lane
    AND o.sent_at IS NULL
    AND o.id > l.low AND $3::bigint IS NOT NULL
    AND o.id = l.witness";

/// The first row that [`READ`] would give, without what may be large or damaged. It has the columns of [`READ`]; as too
/// large, it can never be taken for a record without a payload.
const READ_HEAD: &str = "
SELECT v.version, v.basis, p.*
FROM {versions}
CROSS JOIN unnest($1::smallint[], $2::bigint[]) AS l(lane, low)
LEFT JOIN LATERAL (
    SELECT o.id, l.lane AS lane, o.event_id, left(o.aggregate_type, 300), left(o.aggregate_id, 300), NULL::text,
           NULL::json, 0::bigint, NULL::jsonb, o.created_at{ctid}
    FROM {outbox} o
    WHERE {pending}
    ORDER BY (hashtext(o.aggregate_id) & 63), o.id
    LIMIT 1
) p ON true";
/// The lanes of a read.
const LANES_READ: &str = "unnest($1::smallint[], $2::bigint[], $6::bigint[]) AS l(lane, low, share)";

/// The same with a row of a key for each entry, of which the first unsent row of that key is read.
const KEYS_READ: &str =
    "unnest($1::smallint[], $2::bigint[], $6::bigint[], $7::bigint[]) AS l(lane, low, share, witness)";

/// The length of an event in bytes if no record can hold it, else NULL. What is compared is never more than what the
/// record needs, so that nothing is refused that Kafka might take.
///
/// - The length of a text is known without reading it.
/// - That of jsonb is not. Headers that are stored in few bytes and not compressed are small. The others are measured
///   as they are when nothing is compressed (`#> '{}'` changes nothing else), since their text could exceed the gigabyte
///   that the server allows, which would fail the read of all other rows. They take up to three times as many bytes
///   as in a record.
const TOO_LARGE: &str = "CASE
                   WHEN {length_of_texts} > $5::integer OR octet_length(o.aggregate_type) > $5::integer
                       OR {headers_large} AND {headers_length} / 4 > $5::integer
                   THEN {length_of_texts} + octet_length(o.aggregate_type) + coalesce({headers_length}, 0)
               END";
const LENGTH_OF_TEXTS: &str =
    "(coalesce({length}, 0)::bigint + octet_length(o.aggregate_id) + octet_length(o.event_type))";
const HEADERS_LARGE: &str =
    "(pg_column_size(o.headers) > 2000 OR pg_column_compression(o.headers) IS NOT NULL)";
const HEADERS_LENGTH: &str =
    "CASE WHEN pg_column_size(o.headers) / 4 > $5::integer THEN pg_column_size(o.headers)
                       ELSE pg_column_size(o.headers #> '{}') END";

/// Large headers are fetched only if all of them are strings: a number of a few bytes may have 131,072 digits, and what
/// is no flat object of strings becomes no record anyway.
const HEADERS_READ: &str = "CASE
                   WHEN {headers_large}
                       AND (jsonb_typeof(o.headers) <> 'object' OR o.headers @? '$.* ? (@.type() <> \"string\")')
                   THEN '[]'
                   ELSE o.headers
               END";

/// The only way in which sent_at is ever set.
const MARK: &str = "UPDATE {outbox} SET sent_at = clock_timestamp() WHERE id = ANY($1::bigint[])";
const MARK_AROUND_LOCKS: &str = "
UPDATE {outbox} SET sent_at = clock_timestamp()
WHERE id = ANY (ARRAY(SELECT id FROM {outbox} WHERE id = ANY($1::bigint[]) FOR NO KEY UPDATE SKIP LOCKED))
RETURNING id";

/// By place, which needs no index; and by id, since without a row lock another row may lie there by now.
///
/// The ids are a hashed subplan (IS TRUE keeps it from becoming a join): compared with `= ANY` of a parameter, each row
/// would walk the whole array, which made a batch of 5,000 three times as expensive.
const DELETE: &str = "
DELETE FROM {outbox} WHERE ctid = ANY($1::tid[]) AND (id IN (SELECT unnest($2::bigint[]))) IS TRUE";
const DELETE_AROUND_LOCKS: &str = "
DELETE FROM {outbox}
WHERE id = ANY (ARRAY(SELECT id FROM {outbox} WHERE id = ANY($1::bigint[]) FOR UPDATE SKIP LOCKED))
RETURNING id";

/// Moves whole events; their payloads need not have been fetched. Round rows that somebody else has locked.
const DEAD_LETTER: &str = "
WITH moved AS (
    DELETE FROM {outbox} o
    USING unnest($1::bigint[], $2::text[], $3::text[], $4::text[]) AS r(id, topic, reason, error)
    WHERE o.id = r.id
      AND o.id = ANY (ARRAY(SELECT id FROM {outbox} WHERE id = ANY($1::bigint[]) FOR UPDATE SKIP LOCKED))
    RETURNING o.id, o.event_id, o.aggregate_type, o.aggregate_id, o.event_type, o.payload, o.headers, o.created_at,
              r.topic, r.reason, r.error
)
INSERT INTO {dead_letter} (outbox_id, event_id, aggregate_type, aggregate_id, event_type, payload, headers,
                           created_at, topic, reason, error)
SELECT id, event_id, aggregate_type, aggregate_id, event_type, {payload_bytes}, {headers}, created_at, topic, reason,
       error
FROM moved
ORDER BY id";

const HOLD: &str = "
INSERT INTO {hold} (topic, aggregate_id, reason, error, probe_at)
SELECT h.topic, o.aggregate_id, h.reason, h.error, clock_timestamp() + interval '1 second'
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS h(topic, reason, error, witness)
LEFT JOIN {outbox} o ON o.id = h.witness
ORDER BY h.topic -- two relays that hold the same topics must not deadlock
ON CONFLICT (topic) DO NOTHING";

/// The row itself stays in the outbox. A block hides the whole key. The caller has made sure that no earlier row of the key
/// stays unsent; to check that here, each refused row would walk the unsent rows of its lane.
const BLOCK: &str = "
INSERT INTO {blocked_key} (aggregate_type, aggregate_id, outbox_id, event_id, topic, reason, error)
SELECT o.aggregate_type, o.aggregate_id, o.id, o.event_id, r.topic, r.reason, r.error
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[]) AS r(id, topic, reason, error)
JOIN {outbox} o ON o.id = r.id AND o.sent_at IS NULL
ON CONFLICT (outbox_id) DO NOTHING";

/// A row of each of these held topics, $1, to probe it with: of the key that met the failure, as long as it has unsent rows.
/// If a topic rejects every row ($2), another row may fare better: then any of its rows, chosen at random. The second
/// branch runs only if the first one found nothing. A key that is too long for an index entry is not fetched.
const WITNESSES: &str = "
SELECT d.topic, w.lane, w.id, CASE WHEN octet_length(w.aggregate_id) <= 8192 THEN w.aggregate_id END
FROM unnest($1::text[], $2::boolean[]) AS d(topic, any_row)
CROSS JOIN LATERAL (
    SELECT (hashtext(h.aggregate_id) & 63)::smallint AS lane, p.id, p.aggregate_id
    FROM {hold} h
    CROSS JOIN LATERAL (
        SELECT o.id, o.aggregate_id
        FROM {outbox} o
        WHERE (hashtext(o.aggregate_id) & 63) = (hashtext(h.aggregate_id) & 63) AND o.sent_at IS NULL
          AND o.aggregate_id = h.aggregate_id AND {of_topic} AND {not_blocked}
        ORDER BY (hashtext(o.aggregate_id) & 63), o.id
        LIMIT 1
    ) p
    WHERE h.topic = d.topic AND NOT d.any_row
    UNION ALL
    (SELECT l.lane, p.id, p.aggregate_id
    FROM (SELECT lane FROM unnest($3::smallint[]) AS lanes(lane) ORDER BY random()) AS l
    CROSS JOIN LATERAL (
        SELECT o.id, o.aggregate_id
        FROM {outbox} o
        WHERE (hashtext(o.aggregate_id) & 63) = l.lane AND o.sent_at IS NULL AND {of_topic} AND {not_blocked}
        ORDER BY (hashtext(o.aggregate_id) & 63), o.id
        LIMIT 1
    ) p
    LIMIT 1)
    LIMIT 1
) AS w";

/// One indexed probe a lane.
const LOOK: &str = "
SELECT l.lane, p.id,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
       pg_backend_pid()
FROM {versions}
CROSS JOIN unnest($1::smallint[], $2::bigint[]) AS l(lane, low)
LEFT JOIN LATERAL (
    SELECT o.id
    FROM {outbox} o
    WHERE {pending}
    ORDER BY (hashtext(o.aggregate_id) & 63), o.id
    LIMIT 1
) p ON true";

/// Whoever may still commit a row: an insert takes this lock before it draws an id, and keeps it to the end of its
/// transaction, a prepared one included.
const WRITERS: &str = "
SELECT s.started, s.backend, w.virtualtransaction
FROM (SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, pg_backend_pid()) AS s(started, backend)
LEFT JOIN (
    SELECT virtualtransaction
    FROM pg_locks
    WHERE locktype = 'relation'
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND relation = $1::text::regclass
      AND mode = 'RowExclusiveLock'
) AS w ON true";

/// Counts up to 10,000; above that the span of the ids, which is right as long as few rows lie between that are sent.
pub(crate) const BACKLOG: &str = "
SELECT CASE WHEN counted <= 10000 THEN counted
            ELSE greatest(counted, (SELECT id FROM {outbox} ORDER BY id DESC LIMIT 1) - oldest + 1) END
FROM (
    SELECT count(*) AS counted, min(id) AS oldest
    FROM (
        SELECT p.id
        FROM unnest($1::smallint[], $2::bigint[]) AS l(lane, low)
        CROSS JOIN LATERAL (
            SELECT o.id
            FROM {outbox} o
            WHERE (hashtext(o.aggregate_id) & 63) = l.lane AND o.sent_at IS NULL AND o.id > l.low
            ORDER BY (hashtext(o.aggregate_id) & 63), o.id
            LIMIT 10001
        ) p
        LIMIT 10001
    ) AS bounded
) AS c";

/// The age of the oldest first unsent row of a lane: ids are drawn in about the order of `created_at`. An infinite time,
/// which a writer can make, has an infinite age; before PostgreSQL 17, subtracting it as a time is an error. And the time
/// of the server's clock when all of them were looked at.
pub(crate) const OLDEST: &str = "
SELECT max(greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM p.created_at), 0))::float8,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
FROM unnest($1::smallint[]) AS l(lane)
CROSS JOIN LATERAL (
    SELECT o.created_at
    FROM {outbox} o
    WHERE (hashtext(o.aggregate_id) & 63) = l.lane AND o.sent_at IS NULL
    ORDER BY (hashtext(o.aggregate_id) & 63), o.id
    LIMIT 1
) p";

impl Statements {
    /// The statements for this outbox.
    pub fn new(
        table: &TableName,
        payload: PayloadType,
        on_sent: OnSent,
        template: &TopicTemplate,
        record_bytes_max: i32,
    ) -> Statements {
        let of_type = if template.is_constant() { "" } else { OF_TYPE };
        let render = |sql: &str| {
            let sql = sql
                .replace("{versions}", VERSIONS)
                .replace("{pending}", PENDING)
                .replace("{first_of_key}", FIRST_OF_KEY)
                .replace("{all_paused}", ALL_PAUSED)
                .replace("{not_paused}", NOT_PAUSED)
                .replace("{not_held}", &not_held(template))
                .replace("{too_large}", TOO_LARGE)
                .replace("{headers_read}", HEADERS_READ)
                .replace("{length_of_texts}", LENGTH_OF_TEXTS)
                .replace("{headers_large}", HEADERS_LARGE)
                .replace("{headers_length}", HEADERS_LENGTH)
                .replace("{not_blocked}", NOT_BLOCKED)
                .replace("{key_not_blocked}", KEY_NOT_BLOCKED)
                .replace("{key_not_paused}", KEY_NOT_PAUSED)
                .replace("{of_type}", of_type)
                .replace("{of_key_of_row}", if template.is_constant() { OF_KEY } else { OF_KEY_AND_TYPE })
                .replace("{of_topic}", "{topic_of_row} = d.topic")
                .replace("{topic_of_row}", &topic_of_row(template))
                .replace("{length}", &payload.length_sql("o.payload"))
                .replace("{payload_bytes}", &payload.bytes_sql("payload"))
                .replace("{headers}", "headers")
                .replace("{ctid}", if on_sent == OnSent::Delete { ", o.ctid" } else { "" })
                .replace("{p_ctid}", if on_sent == OnSent::Delete { ", p.ctid" } else { "" });
            table.render(&sql)
        };
        Statements {
            payload,
            on_sent,
            record_bytes_max,
            table: table.clone(),
            template: template.clone(),
            lock: render(LOCK),
            read: render(&READ.replace("{lanes}", LANES_READ)),
            read_first: render(&READ.replace("{lanes}", KEYS_READ).replace("{pending}", "{first_of_key}")),
            read_head: render(READ_HEAD),
            read_row: render(&READ.replace("{lanes}", KEYS_READ).replace("{pending}", THIS_ROW)),
            mark: render(MARK),
            mark_around_locks: render(MARK_AROUND_LOCKS),
            delete: render(DELETE),
            delete_around_locks: render(DELETE_AROUND_LOCKS),
            dead_letter: render(DEAD_LETTER),
            hold: render(HOLD),
            block: render(BLOCK),
            witnesses: render(WITNESSES),
            look: render(LOOK),
            writers: render(WRITERS),
            backlog: render(BACKLOG),
            oldest: render(OLDEST),
        }
    }
}

impl Statements {
    /// The table that they are about.
    pub fn table(&self) -> &TableName {
        &self.table
    }

    /// The same statements for a payload column of this type.
    pub fn with_payload(&self, payload: PayloadType) -> Statements {
        Statements::new(&self.table, payload, self.on_sent, &self.template, self.record_bytes_max)
    }

    /// The claim's read, whose plan a test looks at.
    pub fn read(&self) -> &str {
        &self.read
    }

    /// The settlement of a batch that is deleted, whose plan a test looks at.
    pub fn delete(&self) -> &str {
        &self.delete
    }

    /// The scout's look, whose plan a test looks at.
    pub fn look(&self) -> &str {
        &self.look
    }
}

/// If all types share one topic, a key is one key whatever the type: records of it have one order.
const OF_TYPE: &str = " AND b.aggregate_type = o.aggregate_type";
const OF_KEY: &str = "o.aggregate_id = (SELECT w.aggregate_id FROM {outbox} w WHERE w.id = l.witness)";
const OF_KEY_AND_TYPE: &str = "(o.aggregate_id, o.aggregate_type)
        = (SELECT w.aggregate_id, w.aggregate_type FROM {outbox} w WHERE w.id = l.witness)";

/// What an unsent row `o` waits for, as conditions of SQL, with the names of the tables still to be filled in.
pub(crate) struct Waits {
    /// Its topic is held.
    pub(crate) held: String,
    /// Its key is blocked.
    pub(crate) blocked: String,
    /// Everything, its topic or its key is paused.
    pub(crate) paused: String,
}

impl Waits {
    /// By this template.
    pub(crate) fn new(template: &TopicTemplate) -> Waits {
        let of_type = if template.is_constant() { "" } else { OF_TYPE };
        let filled =
            |sql: &str| sql.replace("{of_type}", of_type).replace("{topic_of_row}", &topic_of_row(template));
        Waits {
            held: filled("EXISTS (SELECT FROM {hold} b WHERE b.topic = {topic_of_row})"),
            blocked: filled(&format!("NOT ({KEY_NOT_BLOCKED})")),
            paused: filled(&format!("NOT ({NOT_PAUSED} AND {KEY_NOT_PAUSED})")),
        }
    }
}

fn topic_of_row(template: &TopicTemplate) -> String {
    let literal = crate::postgres::table::quote_literal;
    if template.is_constant() {
        return literal(template.prefix());
    }
    format!("{} || o.aggregate_type || {}", literal(template.prefix()), literal(template.suffix()))
}

/// The topics whose rows wait.
const WAITING_TOPICS: &str = "(
            SELECT topic FROM {hold} UNION ALL SELECT topic FROM {pause} WHERE topic IS NOT NULL AND aggregate_id IS NULL
        ) AS waiting";

/// The rows whose topic is neither held nor paused. Holds and pauses name topics; the template turns around into the
/// aggregate types of these.
fn not_held(template: &TopicTemplate) -> String {
    let literal = crate::postgres::table::quote_literal;
    if template.is_constant() {
        return format!(
            "NOT EXISTS (SELECT 1 FROM {WAITING_TOPICS} WHERE topic = {})",
            literal(template.prefix())
        );
    }
    let (prefix, suffix) = (template.prefix(), template.suffix());
    format!(
        "o.aggregate_type <> ALL (ARRAY(
        SELECT substr(topic, {from}, greatest(length(topic) - {around}, 0))
        FROM {WAITING_TOPICS}
        WHERE length(topic) >= {around} AND starts_with(topic, {prefix}) AND right(topic, {suffix_length}) = {suffix}))",
        from = prefix.chars().count() + 1,
        around = prefix.chars().count() + suffix.chars().count(),
        suffix_length = suffix.chars().count(),
        prefix = literal(prefix),
        suffix = literal(suffix),
    )
}
