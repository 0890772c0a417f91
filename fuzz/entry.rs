//! The parsers of foreign text. Each function accepts any bytes and panics if a rule is broken. The fuzz targets call
//! them, and `tests/integration/project/fuzzing.rs` runs them on the seeds and on random mutations.

use outbox_relay::config::{self, default_headers};
use outbox_relay::kafka::errors::{CODES, reason};
use outbox_relay::kafka::record;
use outbox_relay::postgres::table::TableName;
use outbox_relay::relay::lanes::Lane;
use outbox_relay::relay::outbox::{Event, Payload};
use outbox_relay::relay::reason::UNEXPECTED;
use pg_outbox::topic::{TOPIC_LENGTH_MAX, TopicTemplate, check_topic};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::Headers;
use rdkafka::types::RDKafkaRespErr;
use uuid::Uuid;

/// A secret that must never be shown. Inputs that contain it by chance are skipped.
const MARKED: &str = "Hunter2MarkedSecret";

fn load(path: Option<&std::path::Path>, variables: &[(&str, &str)]) {
    let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let shown = match config::load(path, owned) {
        Ok(config) => format!("{config:?} {}", config.warnings),
        Err(findings) => findings.to_string(),
    };
    assert!(!shown.contains(MARKED), "the secret is shown");
    assert!(!shown.is_empty());
}

/// A configuration file. Whatever its content, the secrets of the environment are not shown.
pub fn configuration(data: &[u8]) {
    if data.windows(MARKED.len()).any(|window| window == MARKED.as_bytes()) {
        return;
    }
    thread_local! {
        static FOLDER: tempfile::TempDir = tempfile::tempdir().unwrap();
    }
    FOLDER.with(|folder| {
        let path = folder.path().join("config.toml");
        std::fs::write(&path, data).unwrap();
        load(Some(&path), &[]);
        let secrets = [
            ("OUTBOX_RELAY__POSTGRES__PASSWORD", MARKED),
            ("OUTBOX_RELAY__KAFKA__PROPERTIES__SASL_PASSWORD", MARKED),
        ];
        load(Some(&path), &secrets);
    });
}

/// The address of the server for PostgreSQL clients: a URL, or key=value pairs. A password in it is not shown, whatever
/// follows it.
pub fn connection(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if text.contains(MARKED) {
        return;
    }
    for url in [
        text.to_owned(),
        format!("postgres://relay:{MARKED}@localhost/{text}"),
        format!("host=localhost password={MARKED} {text}"),
    ] {
        let variables = [
            ("OUTBOX_RELAY__POSTGRES__URL", url.as_str()),
            ("OUTBOX_RELAY__KAFKA__BOOTSTRAP_SERVERS", "localhost:9"),
        ];
        load(None, &variables);
    }
}

/// A topic template in the first line, an aggregate type in the second, and an event type in the rest.
pub fn topic(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (template, types) = text.split_once('\n').unwrap_or((text, ""));
    let (aggregate_type, event_type) = types.split_once('\n').unwrap_or((types, ""));
    let Ok(template) = TopicTemplate::parse(template) else { return };
    let topic = template.topic(aggregate_type, event_type);
    assert!(topic.starts_with(template.prefix()) && topic.ends_with(template.suffix()), "{topic:?}");
    let mut rendered = "previous content".to_owned();
    template.render(aggregate_type, event_type, &mut rendered);
    assert_eq!(rendered, topic);
    assert_eq!(template.to_string().parse().as_ref(), Ok(&template));
    if check_topic(&topic).is_ok() {
        let has_values = ![aggregate_type, event_type].contains(&"");
        assert!(template.matches(&topic) || !has_values, "{template} {topic:?}");
        let legal = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        assert!(topic.chars().all(legal) && (1..=TOPIC_LENGTH_MAX).contains(&topic.len()), "{topic:?}");
    }
}

/// A table name. If it is accepted, its quoted form has the same meaning.
pub fn table(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(name) = text.parse::<TableName>() else { return };
    assert_eq!(name.quoted().parse().as_ref(), Ok(&name));
    let sql = name.render("{outbox}");
    assert_eq!(sql, name.quoted());
}

/// The headers of a row, which its writer chose. They never replace the relay's own headers.
pub fn headers(data: &[u8]) {
    match record::headers(&Row(data), &default_headers()) {
        Ok(headers) => {
            const OWN: [&str; 2] = [record::EVENT_ID, "event_type"];
            let names: Vec<_> = headers.iter().map(|header| header.key.to_owned()).collect();
            assert_eq!(names[..2], OWN);
            assert!(!names[2..].iter().any(|name| OWN.contains(&name.as_str())), "{names:?}");
        }
        Err(rejection) => assert_eq!(rejection.reason, "invalid-headers"),
    }
}

/// An error code of Kafka. Unlisted codes are unexpected, and no row is at fault.
pub fn kafka_error(data: &[u8]) {
    let Some(number) = data.first_chunk().map(|bytes| i32::from(i16::from_le_bytes(*bytes))) else { return };
    let Ok(code) = RDKafkaRespErr::try_from(number) else { return };
    let code = RDKafkaErrorCode::from(code);
    let listed: Vec<_> =
        CODES.iter().filter(|(_, codes)| codes.contains(&code)).map(|(reason, _)| *reason).collect();
    assert!(listed.len() <= 1, "{code:?}: {listed:?}");
    assert_eq!(reason(code), listed.first().copied().unwrap_or(&UNEXPECTED), "{code:?}");
}

/// A row with these headers.
struct Row<'a>(&'a [u8]);

impl Event for Row<'_> {
    fn id(&self) -> i64 {
        1
    }
    fn event_id(&self) -> Uuid {
        Uuid::nil()
    }
    fn lane(&self) -> Lane {
        Lane::new(0).unwrap()
    }
    fn aggregate_type(&self) -> &[u8] {
        b"order"
    }
    fn key(&self) -> &[u8] {
        b"42"
    }
    fn event_type(&self) -> &[u8] {
        b"Changed"
    }
    fn payload(&self) -> Payload<'_> {
        Payload::Tombstone
    }
    fn headers(&self) -> Option<&[u8]> {
        Some(self.0)
    }
    fn created_at_us(&self) -> i64 {
        0
    }
    fn size(&self) -> usize {
        self.0.len()
    }
}
