//! `[outbox] envelope`: the headers of CloudEvents 1.0 in the binary mode of its Kafka protocol binding.

use crate::headers::{HeaderTemplate, Part, default_headers, parse};
use settings::choice;
use settings::findings::Problem;
use settings::reader::Reader;
use settings::setting::Setting;

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
    /// The format.
    pub envelope: (&'static Setting, Envelope),
    /// The source of CloudEvents.
    pub source: (&'static Setting, Option<&'a str>),
}

/// The headers that a record has without `[outbox.headers]`.
pub(crate) fn headers(options: EnvelopeOptions<'_>, reader: &mut Reader) -> Vec<HeaderTemplate> {
    let EnvelopeOptions { envelope: (setting, envelope), source: (source, text) } = options;
    match (envelope, text) {
        (Envelope::None, None) => default_headers(),
        (Envelope::None, Some(_)) => {
            let message = format!("{source} is set, but [outbox] envelope is not \"cloudevents\"");
            reader.warn(source, Problem::new(message, "set envelope = \"cloudevents\", or remove it"));
            default_headers()
        }
        (Envelope::CloudEvents, None) => {
            if reader.whole {
                let message = format!("{source} is missing, but CloudEvents require a source");
                let help = "set it, for example cloudevents_source = \"/shop\"";
                reader.error(setting, Problem::new(message, help));
            }
            attributes()
        }
        (Envelope::CloudEvents, Some(text)) => {
            let value = value(text).unwrap_or_else(|(what, help)| {
                reader.error(source, Problem::new(format!("{source} {what}"), help));
                Vec::new()
            });
            let mut headers = attributes();
            headers.push(HeaderTemplate { name: SOURCE.to_owned(), value });
            headers
        }
    }
}

fn attributes() -> Vec<HeaderTemplate> {
    let template = |(name, value): &(&str, &str)| {
        let value = parse(value).unwrap_or_default();
        HeaderTemplate { name: (*name).to_owned(), value }
    };
    ATTRIBUTES.iter().map(template).collect()
}

/// A source is a URI reference that is not empty (CloudEvents 1.0.2, "source").
fn value(text: &str) -> Result<Vec<Part>, (String, String)> {
    let value = parse(text)?;
    let is_literal = |c: char| c.is_ascii_graphic() && !"<>\"\\^`{|}".contains(c);
    let legal = |part: &Part| !matches!(part, Part::Text(text) if !text.chars().all(is_literal));
    if value.is_empty() || !value.iter().all(legal) {
        let help = "for example \"/shop\" or \"https://shop.example.com/{aggregate_type}\"";
        return Err(("is not a URI reference".to_owned(), help.to_owned()));
    }
    Ok(value)
}
