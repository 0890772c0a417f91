//! The statements that record the outcome of a batch.

use super::conditions::Target;
use super::query::{Query, Template};
use crate::payload::PayloadType;
use crate::table::Column;

const SENT: &[&str] = &["the IDs of acknowledged rows"];
const VERDICTS: &[&str] = &["the IDs of the rows", "their topics", "the reasons", "the errors"];

/// Marks acknowledged rows, and returns how many have the mark: a trigger can suppress the change, or keep the old value. Only this
/// statement and the next one set `sent_at`.
pub(crate) const MARK: Template = Template {
    name: "mark",
    purpose: "marks acknowledged rows (on_sent = \"mark\")",
    params: SENT,
    sql: "
WITH changed AS (
    UPDATE {outbox} SET {sent_at_column} = clock_timestamp() WHERE {id_column} = ANY($1::bigint[]) RETURNING {sent_at_column} AS sent_at
)
SELECT count(sent_at) FROM changed",
};

/// Returns each row that is not locked, and whether it was changed. A trigger or a rule of the outbox can suppress the change
/// without an error.
pub(crate) const MARK_AROUND_LOCKS: Template = Template {
    name: "mark_around_locks",
    purpose: "marks acknowledged rows that are not locked",
    params: SENT,
    sql: "
WITH free AS MATERIALIZED (
    SELECT {id_column} AS id FROM {outbox} WHERE {id_column} = ANY($1::bigint[]) FOR NO KEY UPDATE SKIP LOCKED
), changed AS (
    UPDATE {outbox} SET {sent_at_column} = clock_timestamp() WHERE {id_column} = ANY (ARRAY(SELECT id FROM free))
    RETURNING {id_column} AS id, {sent_at_column} AS sent_at
)
SELECT free.id, free.id IN (SELECT id FROM changed WHERE sent_at IS NOT NULL) FROM free",
};

/// Deletes acknowledged rows by their place, which needs no index. It also compares the ids, because rows are not locked and
/// another row may be in that place by now.
///
/// The server hashes the ids. IS TRUE prevents a join. With `= ANY ($2)`, it would search the whole array for each row, which
/// triples the cost of a batch of 5,000.
pub(crate) const DELETE: Template = Template {
    name: "delete",
    purpose: "deletes acknowledged rows (on_sent = \"delete\")",
    params: &["the ctids of acknowledged rows", "their IDs"],
    sql: "
DELETE FROM {outbox} WHERE ctid = ANY($1::tid[]) AND ({id_column} IN (SELECT unnest($2::bigint[]))) IS TRUE",
};

pub(crate) const DELETE_AROUND_LOCKS: Template = Template {
    name: "delete_around_locks",
    purpose: "deletes acknowledged rows that are not locked",
    params: SENT,
    sql: "
WITH free AS MATERIALIZED (
    SELECT {id_column} AS id FROM {outbox} WHERE {id_column} = ANY($1::bigint[]) FOR UPDATE SKIP LOCKED
), changed AS (
    DELETE FROM {outbox} WHERE {id_column} = ANY (ARRAY(SELECT id FROM free)) RETURNING {id_column} AS id
)
SELECT free.id, free.id IN (SELECT id FROM changed) FROM free",
};

/// Moves rejected rows to the dead letters, except locked ones. The server moves whole events, so the relay need not have
/// read their payloads.
pub(super) fn dead_letter(target: Target<'_>, payload: PayloadType) -> Query {
    let Target { table, topics } = target;
    let (outbox, dead_letter, payload) = (table.quoted(), table.dead_letter(), payload.bytes_sql("payload"));
    let (id, event) = (table.column(Column::Id), table.whole_event("o"));
    let (o_topic, row_topic) = match topics.column {
        true => (format!(", {} AS row_topic", table.column_of("o", Column::Topic)), ", row_topic"),
        false => (String::new(), ""),
    };
    let sql = format!(
        "
WITH moved AS (
    DELETE FROM {outbox} o
    USING unnest($1::bigint[], $2::text[], $3::text[], $4::text[]) AS r(id, topic, reason, error)
    WHERE o.{id} = r.id
      AND o.{id} = ANY (ARRAY(SELECT {id} FROM {outbox} WHERE {id} = ANY($1::bigint[]) FOR UPDATE SKIP LOCKED))
    RETURNING {event},
              r.topic, r.reason, r.error{o_topic}
)
INSERT INTO {dead_letter} (outbox_id, event_id, aggregate_type, aggregate_id, event_type, payload, headers,
                           created_at, topic, reason, error{row_topic})
SELECT id, event_id, aggregate_type, aggregate_id, event_type, {payload}, headers, created_at, topic, reason,
       error{row_topic}
FROM moved
ORDER BY id"
    );
    Query::new("dead_letter", "moves rejected rows to the dead letters", VERDICTS, sql)
}

/// Holds topics. The ORDER BY prevents deadlocks between relays that hold the same topics at the same time.
pub(crate) const HOLD: Template = Template {
    name: "hold",
    purpose: "holds topics",
    params: &["the topics", "the reasons", "the errors", "the ID of a row of each topic"],
    sql: "
INSERT INTO {hold} (topic, aggregate_id, reason, error, probe_at)
SELECT h.topic, o.aggregate_id, h.reason, h.error, clock_timestamp() + interval '1 second'
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS h(topic, reason, error, witness)
LEFT JOIN {rows} o ON o.id = h.witness
ORDER BY h.topic
ON CONFLICT (topic) DO NOTHING",
};

/// Blocks the keys of rejected rows, which stay in the outbox. The caller ensures that no earlier row of the key is unsent.
/// To check that here, the server would search the unsent rows of the lane for each rejected row.
pub(crate) const BLOCK: Template = Template {
    name: "block",
    purpose: "blocks the keys of rejected rows (on_rejected = \"block-key\")",
    params: VERDICTS,
    sql: "
INSERT INTO {blocked_key} (aggregate_type, aggregate_id, outbox_id, event_id, topic, reason, error)
SELECT o.aggregate_type, o.aggregate_id, o.id, o.event_id, r.topic, r.reason, r.error
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[]) AS r(id, topic, reason, error)
JOIN {rows} o ON o.id = r.id AND o.sent_at IS NULL
ON CONFLICT (outbox_id) DO NOTHING",
};
