//! Unsent events that can never be sent, the topics of the others, and the recorded topic template.

use super::{Checked, Context, Schema};
use crate::access::grants::{RECORD_PRIVILEGES, SETTING_COLUMNS};
use crate::columns::BAD_HEADER;
use crate::cycle::statements::script;
use crate::schema::identity;
use crate::sql::sql;
use pg_outbox::topic::check_topic;
use relay::failure::PostgresFault;
use relay::lanes::Lane;
use relay::reason::{RECORD_TOO_LARGE, remedy};
use relay::topic::TopicRules;
use settings::codes;
use settings::doctor::{Finding, TopicInUse};
use settings::text::counted;
use std::collections::BTreeMap;
use tokio_postgres::Row;

codes! {
    EVENTS_REJECTED = Warning, "events-rejected",
        "events were rejected within the last hour and not requeued; if their writer or their topic is at fault, later events \
         are rejected too, until the relay holds the topic";
    EVENT_TOPIC_NOT_ALLOWED = Error, "event-topic-not-allowed",
        "the event names a topic that `topic_allow` does not contain, so it can never be sent; a relay moves it to the dead \
         letters or blocks its key";
    EVENT_TOPIC_NAME = Error, "event-topic-name",
        "the topic name is invalid, so the event can never be sent; a relay moves it to the dead letters or blocks its key";
    EVENT_TOO_LARGE = Error, "event-too-large",
        "the event is larger than the producer's maximum record size, so it can never be sent; a relay moves it to the dead \
         letters or blocks its key";
    EVENT_HEADERS = Error, "event-headers",
        "the headers are not a flat JSON object of strings and base64 values, or contain a reserved name, so the event can \
         never be sent; a relay moves it to the dead letters or blocks its key";
    TOPIC_TEMPLATE_DIFFERS = Warning, "topic-template-differs",
        "another relay, or this one until it is restarted with the changed configuration, publishes to other topics; \
         applications that check their outbox compare their template with the recorded one";
    TOPIC_TEMPLATE_UNRECORDED = Warning, "topic-template-unrecorded",
        "the relay cannot record its topic template and its clusters, so applications that check their outbox cannot compare \
         theirs, and a relay of a copy of the database is not stopped";
}

const DOING: &str = "checking waiting events";
/// The number of unsent rows to check per lane, and the number of latest rows.
const ROWS_PER_LANE: i64 = 100;
const LATEST_ROWS: i64 = 1_000;
const DEAD_LETTERS_MAX: i64 = 10_000;
const TOPICS_MAX: i64 = 200;
/// The maximum number of rows that a finding names.
const IDS_NAMED: usize = 5;
/// The place of findings about the topic template.
const PLACE: &str = "[outbox] topic";

/// Also returns the topics in `used`.
pub(super) async fn examine(context: &Context<'_>, schema: &Schema, used: &mut Vec<TopicInUse>) -> Checked {
    let (topics, record_bytes_max) = (&schema.topics, context.settings.record_bytes_max);
    let mut findings = Vec::new();
    let mut found: BTreeMap<String, TopicInUse> = BTreeMap::new();
    for row in waiting(context, schema).await? {
        let topic: String = row.get(0);
        findings.extend(unsendable(context, &row, record_bytes_max));
        if let Some(finding) = without_topic(context, topics, &row, &topic) {
            findings.push(finding);
            continue;
        }
        let waiting = in_use(&mut found, topic);
        waiting.waiting += row.get::<_, i64>(1);
        waiting.largest_bytes = waiting.largest_bytes.max(row.get(2));
    }
    let latest = script(sql!("doctor/latest_topics"), context.table, topics).render();
    let limits = params![LATEST_ROWS => INT8, TOPICS_MAX => INT8];
    for row in context.transaction.query(DOING, &latest, &limits).await? {
        let topic: String = row.get(0);
        let is_rejected = topics.column && !topics.matches(&topic);
        if check_topic(&topic).is_ok() && !is_rejected {
            in_use(&mut found, topic);
        }
    }
    let limits = params![DEAD_LETTERS_MAX => INT8, TOPICS_MAX => INT8];
    for row in context.rows(DOING, sql!("doctor/rejected_events"), &limits).await? {
        let (topic, reason, recent): (String, String, i64) = (row.get(0), row.get(1), row.get(2));
        if recent > 0 {
            let events = counted(recent.unsigned_abs(), "event");
            let problem = format!("rejected within the last hour for the reason {reason}: {events}");
            let place = format!("{}, topic {topic}", context.table);
            findings.push(EVENTS_REJECTED.found(place, problem, remedy(&reason)));
        }
        // The limit of the topic may be above that of the relay.
        if reason == RECORD_TOO_LARGE.word && check_topic(&topic).is_ok() {
            in_use(&mut found, topic);
        }
    }
    for topic in topics.named() {
        found.entry(topic.to_owned()).or_insert_with(|| TopicInUse::new(topic.to_owned(), false));
    }
    used.extend(found.into_values());
    Ok(findings)
}

async fn waiting(
    context: &Context<'_>,
    Schema { payload, topics, .. }: &Schema,
) -> Result<Vec<Row>, PostgresFault> {
    let lanes: Vec<i16> = Lane::all().map(Lane::number).collect();
    let most = context.settings.record_bytes_max as i64;
    let script = script(sql!("doctor/waiting_events"), context.table, topics)
        .set("payload_length", payload.length_sql("o.payload"));
    let params = params![
        lanes => INT2_ARRAY, ROWS_PER_LANE => INT8, most => INT8, TOPICS_MAX => INT8,
        context.settings.reserved_headers => TEXT_ARRAY, BAD_HEADER => TEXT
    ];
    context.transaction.query(DOING, &script.render(), &params).await
}

/// Rows that the relay cannot send to their topic.
fn without_topic(context: &Context<'_>, topics: &TopicRules, row: &Row, topic: &str) -> Option<Finding> {
    let is_named: bool = row.get(8);
    let rows = || named(context, row.get(1), row.get(3));
    if let Err(error) = check_topic(topic) {
        let problem = format!("the topic name {topic:?} is invalid: {error}");
        Some(EVENT_TOPIC_NAME.found(rows(), problem, remedy("invalid-topic-name")))
    } else if is_named && !topics.allows(topic) {
        let problem =
            format!("the event names the topic {topic}, which [outbox] topic_allow does not contain");
        Some(EVENT_TOPIC_NOT_ALLOWED.found(rows(), problem, remedy("topic-not-allowed")))
    } else {
        None
    }
}

fn in_use(topics: &mut BTreeMap<String, TopicInUse>, topic: String) -> &mut TopicInUse {
    topics.entry(topic.clone()).or_insert_with(|| TopicInUse::new(topic, true))
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
        let rows = named(context, large, row.get(5));
        findings.push(EVENT_TOO_LARGE.found(rows, problem, remedy("record-too-large")));
    }
    if bad > 0 {
        let problem =
            "headers are not a flat JSON object of strings and base64 values, or use a reserved name";
        findings.push(EVENT_HEADERS.found(
            named(context, bad, row.get(7)),
            problem,
            remedy("invalid-headers"),
        ));
    }
    findings
}

/// The place of a finding about this number of rows, with these IDs.
fn named(context: &Context<'_>, count: i64, ids: Option<Vec<i64>>) -> String {
    let ids: Vec<String> = ids.unwrap_or_default().iter().map(i64::to_string).collect();
    let more = if count > IDS_NAMED as i64 { " and more" } else { "" };
    let rows = if ids.len() == 1 { "row" } else { "rows" };
    format!("{}, {rows} {}{more}", context.table, ids.join(", "))
}

/// Compares the recorded topic template with the configuration.
pub(super) async fn topic_template(context: &Context<'_>) -> Checked {
    let columns: Vec<&str> = SETTING_COLUMNS.split(", ").collect();
    let relation = context.table.name_of("{setting}");
    let params = params![context.table.schema() => TEXT, relation => TEXT, columns => TEXT_ARRAY];
    let doing = "reading the privileges on the recorded settings";
    let rows = context.rows(doing, sql!("doctor/recording_privileges"), &params).await?;
    let Some(row) = rows.first() else {
        let remedy = "recreate it with its statements from `outbox-relay migrate --print --config FILE`";
        let problem = format!("the table {} is missing", context.table.render("{setting}"));
        return Ok(vec![TOPIC_TEMPLATE_UNRECORDED.found(PLACE, problem, remedy)]);
    };
    let (may_read, may_record): (bool, bool) = (row.get(0), row.get(1));
    let mut findings = Vec::new();
    if !(may_read && may_record) {
        let role = &context.role.name;
        let grants: Vec<String> =
            RECORD_PRIVILEGES.iter().map(|privilege| privilege.grant(context.table, role)).collect();
        let problem = format!("role {role} lacks a privilege on {}", context.table.render("{setting}"));
        findings.push(TOPIC_TEMPLATE_UNRECORDED.found(PLACE, problem, grants.join(" ")));
    }
    let configured = context.settings.topics.template.to_string();
    // Nothing is recorded before the first relay starts.
    if may_read
        && let Some(recorded) = identity::template(&context.transaction, context.table).await?
        && recorded.topic_template != configured
    {
        let problem = format!("the configured template is {configured}. The database has {recorded}");
        let remedy = "use the same [outbox] topic for every relay of this table, and restart them: each relay records \
                      its template when it starts";
        findings.push(TOPIC_TEMPLATE_DIFFERS.found(PLACE, problem, remedy));
    }
    Ok(findings)
}
