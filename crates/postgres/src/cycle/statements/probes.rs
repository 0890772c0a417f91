//! The statements about holds, pauses and probes.

use super::conditions::Target;
use super::query::{Query, Template};

const TOPICS: &str = "the topics";

/// Finds a row to probe each held topic with. It uses the key whose row failed, as long as that key has unsent rows. If the
/// topic rejects every row, it uses a random row, because another one may succeed.
///
/// The second branch runs only if the first one finds nothing. Keys that are too long for an index entry are not returned.
pub(super) fn witnesses(target: Target<'_>) -> Query {
    let (rows, hold) = (target.rows(), target.table.hold());
    let (topic, not_blocked) = (target.topic(), target.not_blocked());
    let sql = format!(
        "
SELECT d.topic, w.lane, w.id, CASE WHEN octet_length(w.aggregate_id) <= 8192 THEN w.aggregate_id END
FROM unnest($1::text[], $2::boolean[]) AS d(topic, any_row)
CROSS JOIN LATERAL (
    SELECT (hashtext(h.aggregate_id) & 63)::smallint AS lane, p.id, p.aggregate_id
    FROM {hold} h
    CROSS JOIN LATERAL (
        SELECT o.id, o.aggregate_id
        FROM {rows} o
        WHERE (hashtext(o.aggregate_id) & 63) = ANY (ARRAY[(hashtext(h.aggregate_id) & 63)]) AND o.sent_at IS NULL
          AND o.aggregate_id = h.aggregate_id AND {topic} = d.topic AND {not_blocked}
        ORDER BY (hashtext(o.aggregate_id) & 63), o.id
        LIMIT 1
    ) p
    WHERE h.topic = d.topic AND NOT d.any_row
    UNION ALL
    (SELECT l.lane, p.id, p.aggregate_id
    FROM (SELECT lane FROM unnest($3::smallint[]) AS lanes(lane) ORDER BY random()) AS l
    CROSS JOIN LATERAL (
        SELECT o.id, o.aggregate_id
        FROM {rows} o
        WHERE (hashtext(o.aggregate_id) & 63) = ANY (ARRAY[l.lane]) AND o.sent_at IS NULL AND {topic} = d.topic AND {not_blocked}
        ORDER BY (hashtext(o.aggregate_id) & 63), o.id
        LIMIT 1
    ) p
    LIMIT 1)
    LIMIT 1
) AS w"
    );
    let params = &[TOPICS, "whether any row of the topic will do", "all lanes"];
    Query::new("witnesses", "finds a row to probe each held topic with", params, sql)
}

/// The statements about holds that depend only on the names of the tables.
pub(super) const HOLDS: [Template; 10] =
    [COUNT, HELD, PAUSES, DUE, RELEASE_HOLDS, POSTPONE, RETRY_SOON, RENEW_LEASES, MAKE_DUE, UNSENT];

/// Assigns due topics to this relay for the lease. If the relay dies, another one takes over when the lease ends. Skips
/// paused topics, because a probe sends a row.
///
/// No relay sets `probe_at` more than a minute ahead. A later time means that the clock has stepped back, or that the
/// previous server's clock was ahead, so the topic counts as due.
pub(crate) const DUE: Template = Template {
    name: "due",
    purpose: "assigns due topics to this relay",
    params: &["the maximum number of topics", "the lease in ms"],
    sql: "
UPDATE {hold} SET probe_at = now() + $2::integer * interval '1 millisecond', probes = probes + 1
WHERE topic IN (
    SELECT h.topic
    FROM {hold} h
    WHERE (h.probe_at <= now() OR h.probe_at > now() + interval '1 minute')
      AND NOT EXISTS (
        SELECT FROM {pause} b WHERE b.aggregate_id IS NULL AND (b.topic IS NULL OR b.topic = h.topic))
    ORDER BY h.probe_at
    LIMIT $1::bigint
    FOR UPDATE SKIP LOCKED)
RETURNING topic, reason",
};

pub(crate) const RELEASE_HOLDS: Template = Template {
    name: "release_holds",
    purpose: "releases held topics",
    params: &[TOPICS],
    sql: "DELETE FROM {hold} WHERE topic = ANY($1::text[])",
};

/// The backoff is exponential, from 1 s to 10 s, with jitter in the upper half. If more than 1,000 topics are held, it is longer,
/// but within the minute that [`DUE`] allows: 133 probes per second with up to 5,000 topics, and 267 with 10,000.
pub(crate) const POSTPONE: Template = Template {
    name: "postpone",
    purpose: "sets the next probe of topics whose probe has failed",
    params: &[TOPICS, "the reasons, NULL if unchanged", "the errors"],
    sql: "
UPDATE {hold} h
SET probe_at = now() + greatest(least(power(2, least(h.probes, 10)), 10), n.least) * (0.5 + random() / 2) * interval '1 second',
    reason = coalesce(f.reason, h.reason), error = f.error
FROM unnest($1::text[], $2::text[], $3::text[]) AS f(topic, reason, error),
     (SELECT CASE WHEN count(*) > 1000 THEN least(count(*) / 100.0, 50) ELSE 0 END AS least FROM {hold}) AS n
WHERE h.topic = f.topic
RETURNING h.topic, h.probe_at",
};

pub(crate) const RETRY_SOON: Template = Template {
    name: "retry_soon",
    purpose: "sets the next probe of topics that were not probed",
    params: &[TOPICS],
    sql: "
UPDATE {hold} SET probe_at = now() + interval '1 second', probes = greatest(probes - 1, 0)
WHERE topic = ANY($1::text[])",
};

pub(crate) const RENEW_LEASES: Template = Template {
    name: "renew_leases",
    purpose: "extends the lease of topics whose probe is in flight",
    params: &[TOPICS, "the lease in ms"],
    sql: "
UPDATE {hold} SET probe_at = now() + $2::integer * interval '1 millisecond' WHERE topic = ANY($1::text[])",
};

/// Only for topics that still have the time that this relay set. The others were assigned to another relay since.
pub(crate) const MAKE_DUE: Template = Template {
    name: "make_due",
    purpose: "makes the topics that this relay has postponed due again",
    params: &[TOPICS, "the time that this relay has set for each"],
    sql: "
UPDATE {hold} h SET probe_at = now()
FROM unnest($1::text[], $2::timestamptz[]) AS p(topic, probe_at)
WHERE h.topic = p.topic AND h.probe_at = p.probe_at AND h.probe_at > now()",
};

/// There may be many blocked keys, so they are counted only if the set has changed since the last count, or the server has
/// restarted.
pub(crate) const COUNT: Template = Template {
    name: "count",
    purpose: "counts held topics, blocked keys and pauses",
    params: &["the version at the last count", "the start of the server at the last count"],
    sql: "
SELECT (SELECT count(*) FROM {hold}),
       CASE WHEN v.version = $1::bigint AND pg_postmaster_start_time() = $2::timestamptz THEN NULL
            ELSE (SELECT count(*) FROM {blocked_key}) END,
       v.version, p.everything, p.topics, p.keys, pg_postmaster_start_time()
FROM (SELECT max(version) AS version FROM {hold_version} WHERE singleton) AS v,
     (SELECT count(*) - count(topic) - count(aggregate_id) AS everything, count(topic) AS topics,
             count(aggregate_id) AS keys
      FROM {pause}) AS p",
};

/// When a relay stops, to find out what it could not record.
/// IS TRUE prevents a join, which with the statistics of a drained outbox would compare each row with each other.
pub(crate) const UNSENT: Template = Template {
    name: "unsent",
    purpose: "counts those of these rows that are unsent",
    params: &["the ids", "the event ids"],
    sql: "
SELECT count(*)
FROM {outbox} o
WHERE o.{id_column} = ANY ($1::bigint[]) AND o.{sent_at_column} IS NULL
  AND ((o.{id_column}, o.{event_id_column}) IN (SELECT * FROM unnest($1::bigint[], $2::uuid[]))) IS TRUE",
};

pub(crate) const HELD: Template = Template {
    name: "held",
    purpose: "lists held topics",
    params: &["the maximum number of topics"],
    sql: "SELECT topic, reason FROM {hold} ORDER BY held_at, topic LIMIT $1::bigint",
};

pub(crate) const PAUSES: Template = Template {
    name: "pauses",
    purpose: "lists pauses",
    params: &["the maximum number of pauses"],
    sql: "SELECT id, topic, aggregate_type, reason FROM {pause} ORDER BY id LIMIT $1::bigint",
};
