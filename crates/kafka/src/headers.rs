//! The headers of each record: `[outbox.headers]`, as templates, and `[outbox] envelope`, the headers of CloudEvents 1.0 in the
//! binary mode of its Kafka protocol binding.

use settings::choice;
use settings::file::{Entry, nearest};
use settings::findings::Problem;
use settings::reader::{Raw, Reader};
use settings::setting::{Setting, Table};
use std::collections::BTreeMap;
use std::mem;

/// The longest name, and the longest template, in bytes.
const BYTES_MAX: usize = 1_000;
const HEADERS_MAX: usize = 100;

/// `[outbox.headers]`.
pub static HEADERS: Table = Table {
    section: "outbox.headers",
    example: "{ event_id = \"{event_id}\" }",
    lines: "#event_id = \"{event_id}\"\n#event_type = \"{event_type}\"\n",
    key_of_variable: |name| name.to_lowercase(),
    what: "",
    is_known: |_| false,
    is_harmless: |_| false,
};

const PLACEHOLDERS: [(&str, Part); 5] = [
    ("event_id", Part::EventId),
    ("event_type", Part::EventType),
    ("aggregate_type", Part::AggregateType),
    ("aggregate_id", Part::AggregateId),
    ("created_at", Part::CreatedAt),
];

/// A part of the value of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The same text for every event.
    Text(String),
    /// The UUID as text, lower case with hyphens.
    EventId,
    EventType,
    AggregateType,
    /// The column `aggregate_id`, which is the key.
    AggregateId,
    /// The column `created_at` in the format of RFC 3339, in UTC with microseconds.
    CreatedAt,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderTemplate {
    /// The name. It contains no NUL character.
    pub name: String,
    /// The value, which is empty without parts.
    pub value: Vec<Part>,
}

impl HeaderTemplate {
    /// Whether the header identifies the event or its type. The headers of a row cannot have its name.
    pub fn is_reserved(&self) -> bool {
        self.value.iter().any(|part| matches!(part, Part::EventId | Part::EventType))
    }

    /// The template as in the configuration.
    pub fn template(&self) -> String {
        let template = |part: &Part| match part {
            Part::Text(literal) => literal.replace('{', "{{").replace('}', "}}"),
            part => {
                let name = PLACEHOLDERS.iter().find(|(_, known)| known == part).map_or("", |(name, _)| *name);
                format!("{{{name}}}")
            }
        };
        self.value.iter().map(template).collect()
    }
}

/// The headers `event_id` and `event_type`.
pub fn default_headers() -> Vec<HeaderTemplate> {
    let header = |name: &str, part| HeaderTemplate { name: name.to_owned(), value: vec![part] };
    vec![header("event_id", Part::EventId), header("event_type", Part::EventType)]
}

/// Reads `[outbox.headers]`.
pub fn own(reader: &mut Reader) -> Vec<HeaderTemplate> {
    let entries = reader.entries.table(HEADERS.section);
    let valid = |(name, entry): (&String, &Entry)| {
        header(name, entry).map_err(|problem| reader.findings.error(&entry.place, problem)).ok()
    };
    entries.iter().filter_map(valid).collect()
}

/// The headers of each record: those of the envelope, and its [`own`].
pub fn all(
    own: Vec<HeaderTemplate>,
    options: EnvelopeOptions<'_>,
    reader: &mut Reader,
) -> Vec<HeaderTemplate> {
    let entries = reader.entries.table(HEADERS.section);
    let mut headers = envelope_headers(options, reader);
    // Headers of the configuration replace the default ones. They are added to those of an envelope.
    let replaces_all = options.envelope.1 == Envelope::None && !entries.is_empty();
    headers.retain(|header| !replaces_all && !entries.contains_key(&header.name));
    headers.extend(own);
    headers.sort_by(|one, other| one.name.cmp(&other.name));
    check(&headers, &entries, reader);
    headers
}

fn check(headers: &[HeaderTemplate], entries: &BTreeMap<String, Entry>, reader: &mut Reader) {
    if headers.len() > HEADERS_MAX {
        let message =
            format!("[outbox.headers] has {} headers, but must have at most {HEADERS_MAX}", headers.len());
        reader.findings.error(&reader.default_place(), Problem::new(message, ""));
    }
    for (place, header) in headers.iter().enumerate() {
        let is_same = |other: &&HeaderTemplate| other.name.eq_ignore_ascii_case(&header.name);
        if let Some(other) = headers[..place].iter().find(is_same) {
            let message = format!("the headers `{}` and `{}` differ only in case", other.name, header.name);
            let help = "remove one of them: many consumers ignore the case";
            let entry = entries.get(&header.name).or_else(|| entries.get(&other.name));
            let place = entry.map_or_else(|| reader.default_place(), |entry| entry.place.clone());
            reader.findings.error(&place, Problem::new(message, help));
        }
    }
    if !headers.iter().any(|header| header.value == [Part::EventId]) {
        let message =
            "no header in [outbox.headers] is {event_id}, so consumers cannot recognize a duplicate";
        reader.findings.warn(&reader.default_place(), Problem::new(message, "add event_id = \"{event_id}\""));
    }
}

fn header(name: &str, entry: &Entry) -> Result<HeaderTemplate, Problem> {
    let invalid =
        |what: &str, help: &str| Problem::new(format!("header `{}` {what}", name.escape_debug()), help);
    let (Raw::Variable(text) | Raw::String(text)) = &entry.raw else {
        return Err(invalid("must be a string", "for example \"{event_id}\""));
    };
    if name.is_empty() || name.contains(char::is_control) {
        return Err(invalid(
            "has an invalid name",
            "a name has at least one character, and no control characters",
        ));
    }
    if text.contains(char::is_control) {
        return Err(invalid("contains a control character", "remove it"));
    }
    if name.len().max(text.len()) > BYTES_MAX {
        return Err(invalid(&format!("is longer than {BYTES_MAX} bytes"), ""));
    }
    let value = parse(text).map_err(|problem| invalid(&problem.message, &problem.help))?;
    Ok(HeaderTemplate { name: name.to_owned(), value })
}

/// Parses a template. `{{` and `}}` are literal braces. The message of a problem has no subject.
fn parse(template: &str) -> Result<Vec<Part>, Problem> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        let (brace, after) = from.split_at(1);
        literal.push_str(before);
        if let Some(after) = after.strip_prefix(brace) {
            literal.push_str(brace);
            rest = after;
            continue;
        }
        let Some((name, after)) = after.split_once('}').filter(|_| brace == "{") else {
            let help = "close the brace, or write {{ or }} for a brace in the value";
            return Err(Problem::new(format!("has an unmatched {brace}"), help));
        };
        if !literal.is_empty() {
            parts.push(Part::Text(mem::take(&mut literal)));
        }
        parts.push(placeholder(name)?);
        rest = after;
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        parts.push(Part::Text(literal));
    }
    Ok(parts)
}

fn placeholder(name: &str) -> Result<Part, Problem> {
    if let Some((_, part)) = PLACEHOLDERS.iter().find(|(known, _)| *known == name) {
        return Ok(part.clone());
    }
    if name == "id" {
        let message = "contains {id}, but IDs can be issued again after a failover";
        return Err(Problem::new(message, "use {event_id}"));
    }
    let names = PLACEHOLDERS.iter().map(|(name, _)| *name);
    let help = match nearest(name, names.clone()) {
        Some(near) => format!("did you mean {{{near}}}?"),
        None => format!("the placeholders are {{{}}}", names.collect::<Vec<_>>().join("}, {")),
    };
    Err(Problem::new(format!("contains the unknown placeholder {{{name}}}"), help))
}

/// The attributes whose value does not depend on the configuration. `content-type` is the binding's name of `datacontenttype`.
const ATTRIBUTES: [(&str, &str); 6] = [
    ("ce_specversion", "1.0"),
    ("ce_id", "{event_id}"),
    ("ce_type", "{event_type}"),
    ("ce_time", "{created_at}"),
    ("ce_subject", "{aggregate_id}"),
    ("content-type", "application/json"),
];
const SOURCE: &str = "ce_source";

choice! {
    /// Which headers each record gets.
    Envelope {
        /// `event_id` and `event_type`, or those of `[outbox.headers]`.
        None = "none",
        /// The attributes of CloudEvents 1.0 in binary mode, and those of `[outbox.headers]`.
        CloudEvents = "cloudevents",
    }
}

/// `[outbox] envelope` and `cloudevents_source`, each with its setting.
#[derive(Clone, Copy, Debug)]
pub struct EnvelopeOptions<'a> {
    pub envelope: (&'static Setting, Envelope),
    pub source: (&'static Setting, Option<&'a str>),
}

/// The headers that a record has without `[outbox.headers]`.
fn envelope_headers(options: EnvelopeOptions<'_>, reader: &mut Reader) -> Vec<HeaderTemplate> {
    let EnvelopeOptions { envelope: (setting, envelope), source: (source, text) } = options;
    if envelope == Envelope::None {
        if text.is_some() {
            let message = format!("{source} is set, but [outbox] envelope is not \"cloudevents\"");
            reader.warn(source, Problem::new(message, "set envelope = \"cloudevents\", or remove it"));
        }
        return default_headers();
    }
    let template = |(name, value): &(&str, &str)| {
        let value = parse(value).unwrap_or_default();
        HeaderTemplate { name: (*name).to_owned(), value }
    };
    let mut headers: Vec<_> = ATTRIBUTES.iter().map(template).collect();
    if let Some(text) = text {
        let value = value(text).unwrap_or_else(|Problem { message, help }| {
            reader.error(source, Problem::new(format!("{source} {message}"), help));
            Vec::new()
        });
        headers.push(HeaderTemplate { name: SOURCE.to_owned(), value });
    } else if reader.whole {
        let message = format!("{source} is missing, but CloudEvents require a source");
        let help = "set it, for example cloudevents_source = \"/shop\"";
        reader.error(setting, Problem::new(message, help));
    }
    headers
}

/// A source is a URI reference that is not empty (CloudEvents 1.0.2, "source").
fn value(text: &str) -> Result<Vec<Part>, Problem> {
    let value = parse(text)?;
    let is_literal = |c: char| c.is_ascii_graphic() && !"<>\"\\^`{|}".contains(c);
    let legal = |part: &Part| !matches!(part, Part::Text(text) if !text.chars().all(is_literal));
    if value.is_empty() || !value.iter().all(legal) {
        let help = "for example \"/shop\" or \"https://shop.example.com/{aggregate_type}\"";
        return Err(Problem::new("is not a URI reference", help));
    }
    Ok(value)
}
