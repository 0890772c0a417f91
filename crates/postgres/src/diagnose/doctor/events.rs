//! Finds unsent events that can never be sent, and lists the topics of the others.

use super::Context;
use super::schema::Schema;
use crate::connection::transaction::Params;
use crate::cycle::statements::topic_sql;
use crate::table::fill;
use pg_outbox::topic::check_topic;
use relay::failure::PostgresFault;
use relay::lanes::Lane;
use relay::reason::{RECORD_TOO_LARGE, remedy};
use relay::topic::TopicRules;
use settings::doctor::codes::{
    EVENT_HEADERS, EVENT_TOO_LARGE, EVENT_TOPIC_NAME, EVENT_TOPIC_NOT_ALLOWED, EVENTS_REJECTED,
};
use settings::doctor::{Code, Finding, TopicInUse};
use settings::text::counted;
use std::collections::BTreeMap;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

const DOING: &str = "checking waiting events";
/// The number of unsent rows to check per lane, and the number of latest rows.
const ROWS_PER_LANE: i64 = 100;
const LATEST_ROWS: i64 = 1_000;
const TOPICS_MAX: i64 = 200;
/// The maximum number of rows that a finding names.
const IDS_NAMED: usize = 5;

/// The first unsent rows of each lane, by topic. Names are cut to a length that is still too long for a topic. Rows of more
/// than $3 bytes do not fit into a record. Large headers are not checked.
const WAITING: &str = "
SELECT left(p.topic, 300), count(*), max(p.bytes)::bigint,
       (array_agg(p.id ORDER BY p.id))[1:5],
       count(*) FILTER (WHERE p.bytes > $3::bigint),
       (array_agg(p.id ORDER BY p.id) FILTER (WHERE p.bytes > $3::bigint))[1:5],
       count(*) FILTER (WHERE p.bad_headers),
       (array_agg(p.id ORDER BY p.id) FILTER (WHERE p.bad_headers))[1:5],
       p.is_named
FROM unnest($1::smallint[]) AS l(lane)
CROSS JOIN LATERAL (
    SELECT o.id, {topic} AS topic, {is_named} AS is_named,
           coalesce({length}, 0)::bigint + octet_length(o.aggregate_id) + octet_length(o.event_type) AS bytes,
           CASE WHEN pg_column_size(o.headers) <= 2000 AND pg_column_compression(o.headers) IS NULL
                THEN CASE WHEN jsonb_typeof(o.headers) NOT IN ('object', 'null') THEN true
                          ELSE o.headers @? $6::text::jsonpath
                               OR o.headers ?| $5::text[] END
                ELSE false END AS bad_headers
    FROM {rows_with_topic} o
    WHERE (hashtext(o.aggregate_id) & 63) = ANY (ARRAY[l.lane]) AND o.sent_at IS NULL
    ORDER BY (hashtext(o.aggregate_id) & 63), o.id
    LIMIT $2::bigint
) AS p
GROUP BY 1, p.is_named
ORDER BY 2 DESC
LIMIT $4::bigint";

/// Finds a header that is neither a string nor base64, in which white space is ignored.
const BAD_HEADER: &str = r#"$.* ? (@.type() <> "string" && !(@.type() == "object" && @.base64.type() == "string"
    && @.base64 like_regex "^\\s*(([A-Za-z0-9+/]\\s*){4})*(([A-Za-z0-9+/]\\s*){2}(=\\s*){2}|([A-Za-z0-9+/]\\s*){3}=\\s*)?$"
    && !exists(@.keyvalue() ? (@.key <> "base64"))))"#;

/// The topics of the latest rows, which are in use even if no event waits.
const LATEST: &str = "
SELECT DISTINCT left({topic}, 300)
FROM (SELECT {columns} FROM {rows_with_topic} AS latest ORDER BY id DESC LIMIT $1::bigint) AS o
LIMIT $2::bigint";

/// The latest dead letters that were not requeued, by topic and reason. Only some columns are needed, because the relay may not read
/// the others.
const REJECTED: &str = "
SELECT left(d.topic, 300), d.reason, count(*) FILTER (WHERE d.rejected_at > now() - interval '1 hour')
FROM (
    SELECT topic, reason, rejected_at FROM {dead_letter} WHERE requeued_at IS NULL ORDER BY id DESC LIMIT $1::bigint
) AS d
GROUP BY 1, 2
ORDER BY 3 DESC
LIMIT $2::bigint";

/// How many dead letters are read.
const DEAD_LETTERS_MAX: i64 = 10_000;

pub(super) async fn examine(
    context: &Context<'_>,
    schema: &Schema,
    record_bytes_max: usize,
) -> Result<(Vec<Finding>, Vec<TopicInUse>), PostgresFault> {
    let topics = &schema.topics;
    let mut findings = Vec::new();
    let mut found: BTreeMap<String, TopicInUse> = BTreeMap::new();
    for row in waiting(context, schema, record_bytes_max).await? {
        let topic: String = row.get(0);
        findings.extend(unsendable(context, &row, record_bytes_max));
        if let Some(finding) = without_topic(context, topics, &row, &topic) {
            findings.push(finding);
            continue;
        }
        let used = in_use(&mut found, topic);
        used.waiting += row.get::<_, i64>(1);
        used.largest_bytes = used.largest_bytes.max(row.get(2));
    }
    for row in latest(context, topics).await? {
        let topic: String = row.get(0);
        let is_rejected = topics.column && !topics.matches(&topic);
        if check_topic(&topic).is_ok() && !is_rejected {
            in_use(&mut found, topic);
        }
    }
    for row in rejected(context).await? {
        let (topic, reason, recent): (String, String, i64) = (row.get(0), row.get(1), row.get(2));
        if recent > 0 {
            findings.push(wave(context, &topic, &reason, recent));
        }
        // The limit of the topic may be above that of the relay.
        if reason == RECORD_TOO_LARGE.word && check_topic(&topic).is_ok() {
            in_use(&mut found, topic);
        }
    }
    for topic in topics.named() {
        let new = TopicInUse { topic: topic.to_owned(), has_events: false, waiting: 0, largest_bytes: 0 };
        found.entry(new.topic.clone()).or_insert(new);
    }
    Ok((findings, found.into_values().collect()))
}

async fn waiting(
    context: &Context<'_>,
    Schema { payload, topics, .. }: &Schema,
    record_bytes_max: usize,
) -> Result<Vec<Row>, PostgresFault> {
    let lanes: Vec<i16> = Lane::all().map(Lane::number).collect();
    let most = record_bytes_max as i64;
    let sql = WAITING
        .replace("{length}", &payload.length_sql("o.payload"))
        .replace("{is_named}", if topics.column { "o.topic IS NOT NULL" } else { "false" });
    let sql = render(context, topics, &sql);
    let reserved = &context.settings.reserved_headers;
    let params: Params<'_> = &[
        (&lanes, Type::INT2_ARRAY),
        (&ROWS_PER_LANE, Type::INT8),
        (&most, Type::INT8),
        (&TOPICS_MAX, Type::INT8),
        (reserved, Type::TEXT_ARRAY),
        (&BAD_HEADER, Type::TEXT),
    ];
    context.transaction.query(DOING, &sql, params).await
}

fn render(context: &Context<'_>, topics: &TopicRules, template: &str) -> String {
    fill(template, |placeholder| match placeholder {
        "rows_with_topic" => Some(context.table.rows(topics.column)),
        "topic" => Some(topic_sql(context.table, topics)),
        _ => context.table.value_of(placeholder),
    })
}

async fn latest(context: &Context<'_>, topics: &TopicRules) -> Result<Vec<Row>, PostgresFault> {
    let columns =
        if topics.column { "aggregate_type, event_type, topic" } else { "aggregate_type, event_type" };
    let sql = render(context, topics, &LATEST.replace("{columns}", columns));
    let params: Params<'_> = &[(&LATEST_ROWS, Type::INT8), (&TOPICS_MAX, Type::INT8)];
    context.transaction.query(DOING, &sql, params).await
}

async fn rejected(context: &Context<'_>) -> Result<Vec<Row>, PostgresFault> {
    context.rows(DOING, REJECTED, &[(&DEAD_LETTERS_MAX, Type::INT8), (&TOPICS_MAX, Type::INT8)]).await
}

fn wave(context: &Context<'_>, topic: &str, reason: &str, recent: i64) -> Finding {
    let problem = format!(
        "rejected within the last hour for the reason {reason}: {}",
        counted(recent.unsigned_abs(), "event")
    );
    EVENTS_REJECTED.found(format!("{}, topic {topic}", context.table), problem, remedy(reason))
}

/// Rows that the relay cannot send to their topic.
fn without_topic(context: &Context<'_>, topics: &TopicRules, row: &Row, topic: &str) -> Option<Finding> {
    let is_named: bool = row.get(8);
    let (code, problem, reason) = if let Err(error) = check_topic(topic) {
        let problem = format!("the topic name {topic:?} is invalid: {error}");
        (&EVENT_TOPIC_NAME, problem, "invalid-topic-name")
    } else if is_named && !topics.allows(topic) {
        let problem =
            format!("the event names the topic {topic}, which [outbox] topic_allow does not contain");
        (&EVENT_TOPIC_NOT_ALLOWED, problem, "topic-not-allowed")
    } else {
        return None;
    };
    Some(about(context, code, row.get(1), row.get(3), &problem, reason))
}

fn in_use(topics: &mut BTreeMap<String, TopicInUse>, topic: String) -> &mut TopicInUse {
    let new = TopicInUse { topic: topic.clone(), has_events: true, waiting: 0, largest_bytes: 0 };
    topics.entry(topic).or_insert(new)
}

/// Rows that are too large for a record, or have invalid headers.
fn unsendable(context: &Context<'_>, row: &Row, record_bytes_max: usize) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (large, bad): (i64, i64) = (row.get(4), row.get(6));
    if large > 0 {
        let problem = format!(
            "payload, key and type have up to {} bytes, but message.max.bytes in [kafka.properties] is \
             {record_bytes_max}",
            row.get::<_, i64>(2)
        );
        findings.push(about(context, &EVENT_TOO_LARGE, large, row.get(5), &problem, "record-too-large"));
    }
    if bad > 0 {
        let problem =
            "headers are not a flat JSON object of strings and base64 values, or use a reserved name";
        findings.push(about(context, &EVENT_HEADERS, bad, row.get(7), problem, "invalid-headers"));
    }
    findings
}

fn about(
    context: &Context<'_>,
    code: &'static Code,
    count: i64,
    ids: Option<Vec<i64>>,
    problem: &str,
    reason: &str,
) -> Finding {
    let ids: Vec<String> = ids.unwrap_or_default().iter().map(i64::to_string).collect();
    let more = if count > IDS_NAMED as i64 { " and more" } else { "" };
    let rows = if ids.len() == 1 { "row" } else { "rows" };
    let place = format!("{}, {rows} {}{more}", context.table, ids.join(", "));
    code.found(place, problem, remedy(reason))
}
