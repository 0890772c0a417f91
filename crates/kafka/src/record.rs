//! Maps a row to a record: key and value unchanged, the headers of `[outbox.headers]`, and the row's own headers.
//!
//! The row's id is not sent, because consumers could use it to detect duplicates, and ids are issued again after a failover.
//! The record's timestamp is not `created_at`, because Kafka would delete a backlog older than `retention.ms` on arrival.

use crate::headers::{HeaderTemplate, Part};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use humantime::format_rfc3339_micros;
use rdkafka::message::{Header, OwnedHeaders};
use relay::failure::Rejection;
use relay::outbox::{Event, Payload};
use relay::reason::{INVALID_HEADERS, RECORD_TOO_LARGE};
use serde::de::{Deserializer, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

/// The header by which consumers detect duplicates, unless `[outbox.headers]` renames it.
pub const EVENT_ID: &str = "event_id";

/// The record of a row, without its topic and partition.
pub(crate) struct Record<'e> {
    pub key: &'e [u8],
    /// `None` is a tombstone.
    pub value: Option<&'e [u8]>,
    /// In the order in which they are sent.
    pub headers: OwnedHeaders,
}

/// The record of a row. `bytes_max` is `message.max.bytes`, for the error.
pub(crate) fn record<'e, E: Event>(
    event: &'e E,
    templates: &[HeaderTemplate],
    bytes_max: usize,
) -> Result<Record<'e>, Rejection> {
    let value = match event.payload() {
        Payload::TooLarge { bytes } => return Err(too_large(bytes, bytes_max)),
        Payload::Tombstone => None,
        Payload::Bytes(bytes) => Some(bytes),
    };
    Ok(Record { key: event.key(), value, headers: headers(event, templates)? })
}

pub(crate) fn too_large(bytes: i64, max: usize) -> Rejection {
    RECORD_TOO_LARGE.rejection(format!(
        "payload, key, type and headers have {bytes} bytes; the record exceeds message.max.bytes = {max} of [kafka.properties]"
    ))
}

/// The headers of a row's record: the templates, then those of the row with other names.
pub fn headers<E: Event>(event: &E, templates: &[HeaderTemplate]) -> Result<OwnedHeaders, Rejection> {
    let mut id = [0; uuid::fmt::Hyphenated::LENGTH];
    let id: &[u8] = event.event_id().hyphenated().encode_lower(&mut id).as_bytes();
    let mut headers = OwnedHeaders::new_with_capacity(templates.len() + 2);
    for template in templates {
        let value = value(event, id, &template.value)?;
        headers = headers.insert(Header { key: &template.name, value: Some(&*value) });
    }
    match event.headers() {
        None => Ok(headers),
        Some(json) => add_own(headers, json, templates),
    }
}

/// Copies nothing if the value has one part, except for a time.
fn value<'e, E: Event>(event: &'e E, id: &'e [u8], parts: &'e [Part]) -> Result<Cow<'e, [u8]>, Rejection> {
    if let [part] = parts {
        return part_of(event, id, part);
    }
    let mut value = Vec::new();
    for part in parts {
        value.extend_from_slice(&part_of(event, id, part)?);
    }
    Ok(value.into())
}

fn part_of<'e, E: Event>(event: &'e E, id: &'e [u8], part: &'e Part) -> Result<Cow<'e, [u8]>, Rejection> {
    Ok(match part {
        Part::Text(text) => text.as_bytes().into(),
        Part::EventId => id.into(),
        Part::EventType => event.event_type().into(),
        Part::AggregateType => event.aggregate_type().into(),
        Part::AggregateId => event.key().into(),
        Part::CreatedAt => match rfc3339(event.created_at_us()) {
            Some(text) => text.into_bytes().into(),
            None => return Err(INVALID_HEADERS.rejection(OUT_OF_RANGE)),
        },
    })
}

/// RFC 3339 has no other years.
const OUT_OF_RANGE: &str = "the header for {created_at} needs a year from 0000 to 9999";

fn add_own(
    headers: OwnedHeaders,
    json: &[u8],
    templates: &[HeaderTemplate],
) -> Result<OwnedHeaders, Rejection> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    deserializer.deserialize_map(Own { headers, templates }).map_err(|error| {
        // serde_json's message may contain a value, so only messages of our own visitor are shown.
        let text = error.to_string();
        let message = text.split(" at line ").next().unwrap_or_default();
        let is_ours = message.starts_with(OUR_MESSAGES);
        INVALID_HEADERS.rejection(if is_ours { message } else { NOT_FLAT })
    })
}

const NOT_FLAT: &str = "headers must be a flat JSON object of strings and base64 values";

/// How every message of our visitor begins.
const OUR_MESSAGES: &str = "the header";

struct Own<'t> {
    headers: OwnedHeaders,
    templates: &'t [HeaderTemplate],
}

impl<'de> Visitor<'de> for Own<'_> {
    type Value = OwnedHeaders;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a flat JSON object of strings and base64 values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OwnedHeaders, A::Error> {
        use serde::de::Error;
        let mut headers = self.headers;
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            if name.contains('\0') {
                return Err(A::Error::custom("the header name contains a NUL character"));
            }
            if self.templates.iter().any(|template| template.name == *name && template.is_reserved()) {
                return Err(A::Error::custom(format!("the header name {name:?} is reserved")));
            }
            let is_fixed = |template: &HeaderTemplate| template.name.eq_ignore_ascii_case(&name);
            // Consumers differ in which of two headers they read. A writer must not replace what the operator configured.
            let is_own = !self.templates.iter().any(is_fixed);
            let value: HeaderValue<'de> = map.next_value().map_err(|_| {
                A::Error::custom(format!(
                    "the header {name:?} is neither a string nor {{\"base64\": \"...\"}}"
                ))
            })?;
            if matches!(value, HeaderValue::Binary { .. }) && is_attribute(&name, self.templates) {
                return Err(A::Error::custom(format!(
                    "the header {name:?} is an attribute of CloudEvents, so it must be a string"
                )));
            }
            let bytes = value
                .bytes()
                .ok_or_else(|| A::Error::custom(format!("the header {name:?} is not valid base64")))?;
            if is_own {
                headers = headers.insert(Header { key: &name, value: Some(&*bytes) });
            }
        }
        Ok(headers)
    }
}

/// A string, or `{"base64": "..."}` for bytes. Borrowed unless it contains an escape sequence.
#[derive(serde::Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum HeaderValue<'a> {
    Text(#[serde(borrow)] Cow<'a, str>),
    Binary {
        #[serde(borrow)]
        base64: Cow<'a, str>,
    },
}

impl HeaderValue<'_> {
    /// `None` if the base64 is invalid. PostgreSQL's `encode` breaks lines, so white space is ignored.
    fn bytes(&self) -> Option<Cow<'_, [u8]>> {
        match self {
            HeaderValue::Text(text) => Some(text.as_bytes().into()),
            HeaderValue::Binary { base64 } => {
                let digits: Vec<u8> = base64.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
                STANDARD.decode(digits).ok().map(Cow::from)
            }
        }
    }
}

/// Whether a consumer reads the header as an attribute of an event in CloudEvents format.
fn is_attribute(name: &str, templates: &[HeaderTemplate]) -> bool {
    name.get(..3).is_some_and(|prefix| prefix.eq_ignore_ascii_case("ce_"))
        && templates.iter().any(|template| template.name == "ce_specversion")
}

/// After 400 years, the calendar repeats.
const ERA_US: i64 = 146_097 * 24 * 60 * 60 * 1_000_000;

/// A time in microseconds since 1970, in the format of RFC 3339 (`2026-01-31T23:59:59.000001Z`). `None` if the year is not
/// from 0000 to 9999.
fn rfc3339(microseconds: i64) -> Option<String> {
    // humantime formats no time before 1970, so it gets the same day of another era.
    let (era, micros) = (microseconds.div_euclid(ERA_US), microseconds.rem_euclid(ERA_US));
    let text = format_rfc3339_micros(UNIX_EPOCH + Duration::from_micros(micros as u64)).to_string();
    let (year, rest) = text.split_once('-')?;
    let year = year.parse::<i64>().ok()? + 400 * era;
    (0..=9999).contains(&year).then(|| format!("{year:04}-{rest}"))
}

#[cfg(test)]
mod tests {
    use super::{rfc3339, *};
    use crate::headers::default_headers;
    use rdkafka::message::Headers;

    fn own(json: &str) -> Result<Vec<(String, String)>, Rejection> {
        let headers = add_own(OwnedHeaders::new(), json.as_bytes(), &default_headers())?;
        let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
        Ok(headers.iter().map(|header| (header.key.to_owned(), text(header.value))).collect())
    }

    #[test]
    fn a_flat_object_of_strings_becomes_headers() {
        let headers = own(r#"{"traceparent": "00-ab", "name": "a\"\u00e9"}"#).unwrap();
        assert_eq!(headers, [("traceparent".into(), "00-ab".into()), ("name".into(), "a\"é".into())]);
        assert_eq!(own("{}").unwrap(), []);
    }

    #[test]
    fn base64_becomes_bytes() {
        let json = br#"{"id": {"base64": "AAAA\nAAAA AAE=\n"}, "none": {"base64": ""}, "text": "AAE="}"#;
        let headers = add_own(OwnedHeaders::new(), json, &default_headers()).unwrap();
        let values: Vec<_> = headers.iter().map(|header| header.value.unwrap_or_default()).collect();
        assert_eq!(values, [&[0, 0, 0, 0, 0, 0, 0, 1][..], b"", b"AAE="]);
    }

    #[test]
    fn an_attribute_of_cloud_events_cannot_be_binary() {
        let json = br#"{"ce_shard": {"base64": "AAE="}}"#;
        assert!(add_own(OwnedHeaders::new(), json, &default_headers()).is_ok());
        let envelope = [HeaderTemplate { name: "ce_specversion".to_owned(), value: Vec::new() }];
        let rejection = add_own(OwnedHeaders::new(), json, &envelope).unwrap_err();
        assert_eq!(
            rejection.error,
            "the header \"ce_shard\" is an attribute of CloudEvents, so it must be a string"
        );
        let other = br#"{"shard": {"base64": "AAE="}, "ce_shard": "1"}"#;
        assert_eq!(add_own(OwnedHeaders::new(), other, &envelope).unwrap().count(), 2);
    }

    const NEITHER: &str = "the header \"n\" is neither a string nor {\"base64\": \"...\"}";

    #[test]
    fn anything_else_is_rejected_without_showing_a_value() {
        for (json, expected) in [
            (r#"{"n": 12345}"#, NEITHER),
            (r#"{"n": null}"#, NEITHER),
            (r#"{"n": {"secret": "x"}}"#, NEITHER),
            (r#"{"n": {"base64": 12345}}"#, NEITHER),
            (r#"{"n": {"base64": "AAEC", "secret": "x"}}"#, NEITHER),
            (r#"{"n": {"base64": "AAE"}}"#, "the header \"n\" is not valid base64"),
            (r#"{"n": {"base64": "_secret_"}}"#, "the header \"n\" is not valid base64"),
            (r#"["secret"]"#, NOT_FLAT),
            (r#""secret""#, NOT_FLAT),
            (r#"{"event_id": "x"}"#, "the header name \"event_id\" is reserved"),
            (r#"{"a\u0000b": "x"}"#, "the header name contains a NUL character"),
        ] {
            let rejection = own(json).unwrap_err();
            assert_eq!((rejection.reason, rejection.error.as_str()), ("invalid-headers", expected), "{json}");
        }
    }

    #[test]
    fn configured_headers_win_over_those_of_the_row() {
        let template = |name: &str| HeaderTemplate { name: name.to_owned(), value: Vec::new() };
        let templates = ["ce_source", "content-type", "Team"].map(template);
        let json = br#"{"ce_source": "/forged", "CE_Source": "/forged", "team": "x", "content-type": "text/csv", "a": "b"}"#;
        let headers = add_own(OwnedHeaders::new(), json, &templates).unwrap();
        let names: Vec<_> = headers.iter().map(|header| header.key).collect();
        assert_eq!(names, ["a"]);
    }

    #[test]
    fn ten_thousand_headers_are_accepted() {
        let json: Vec<String> = (0..10_000).map(|n| format!("\"h{n}\": \"v\"")).collect();
        assert_eq!(own(&format!("{{{}}}", json.join(","))).unwrap().len(), 10_000);
    }

    #[test]
    fn times_are_written_in_utc_with_microseconds() {
        for (microseconds, expected) in [
            (0, Some("1970-01-01T00:00:00.000000Z")),
            (-1, Some("1969-12-31T23:59:59.999999Z")),
            (951_782_400_000_000, Some("2000-02-29T00:00:00.000000Z")),
            (981_173_106_789_012, Some("2001-02-03T04:05:06.789012Z")),
            (4_107_542_399_000_000, Some("2100-02-28T23:59:59.000000Z")),
            (4_107_542_400_000_000, Some("2100-03-01T00:00:00.000000Z")),
            (253_402_300_799_999_999, Some("9999-12-31T23:59:59.999999Z")),
            (253_402_300_800_000_000, None),
            (-62_167_219_200_000_000, Some("0000-01-01T00:00:00.000000Z")),
            (-62_167_219_200_000_001, None),
            (i64::MAX, None),
            (i64::MIN, None),
        ] {
            assert_eq!(rfc3339(microseconds).as_deref(), expected, "{microseconds}");
        }
    }
}
