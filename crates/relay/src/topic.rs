//! Which topic an event belongs to, and which ones it may name.

use crate::reason::{INVALID_TOPIC_NAME, TOPIC_NOT_ALLOWED};
use crate::{Event, Rejection};
use pg_outbox::topic::{TOPIC_LENGTH_MAX, TemplateError, TopicError, TopicPart, TopicTemplate, check_topic};
use settings::findings::Problem;
use settings::reader::{Reader, Value};
use settings::setting::Setting;
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

#[derive(Clone, Debug)]
pub struct TopicRules {
    /// For events that name no topic.
    pub template: TopicTemplate,
    /// Whether the outbox has the column `topic`. Its value, if it is not NULL, wins over the template.
    pub column: bool,
    pub allow: Option<TopicAllow>,
}

impl TopicRules {
    /// These rules for an outbox with, or without, the column `topic`.
    pub fn with_column(self, column: bool) -> TopicRules {
        TopicRules { column, ..self }
    }

    pub fn is_constant(&self) -> bool {
        !self.column && self.template.is_constant()
    }

    /// Whether only the aggregate type determines the topic, and no two types share one.
    pub fn is_by_aggregate_type(&self) -> bool {
        !self.column && self.template.is_by_aggregate_type()
    }

    pub fn matches(&self, topic: &str) -> bool {
        self.template.matches(topic) || (self.column && self.allows(topic))
    }

    /// The topics that the configuration names, whether or not there are events for them.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        let template = self.template.is_constant().then(|| self.template.prefix());
        template.into_iter().chain(self.allow.iter().flat_map(TopicAllow::names))
    }

    pub fn allows(&self, topic: &str) -> bool {
        self.allow.as_ref().is_some_and(|allow| allow.contains(topic))
    }
}

impl From<TopicTemplate> for TopicRules {
    fn from(template: TopicTemplate) -> TopicRules {
        TopicRules { template, column: false, allow: None }
    }
}

impl FromStr for TopicRules {
    type Err = TemplateError;

    fn from_str(template: &str) -> Result<TopicRules, TemplateError> {
        TopicTemplate::parse(template).map(TopicRules::from)
    }
}

/// The topic of an event, or why the event cannot be sent there.
pub fn of<E: Event>(rules: &TopicRules, event: &E) -> Result<String, Rejection> {
    let name = name(rules, event);
    check(rules, event, &name).map(|()| name)
}

/// The name of the topic, which may be invalid.
pub fn name<E: Event>(rules: &TopicRules, event: &E) -> String {
    match event.topic() {
        Some(topic) => text(topic).into_owned(),
        None => rules.template.topic(&text(event.aggregate_type()), &text(event.event_type())),
    }
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// What the topic of an event depends on. Events with the same dependency have the same topic. Needs `buffer` only if the
/// topic depends on more than the aggregate type.
pub(crate) fn dependency<'a, E: Event>(
    rules: &TopicRules,
    event: &'a E,
    buffer: &'a mut Vec<u8>,
) -> &'a [u8] {
    if !rules.column && !rules.template.has_event_type() {
        return event.aggregate_type();
    }
    buffer.clear();
    match event.topic() {
        Some(topic) => {
            buffer.push(1);
            buffer.extend_from_slice(topic);
        }
        None => {
            buffer.push(0);
            if rules.template.parts().contains(&TopicPart::AggregateType) {
                buffer.extend_from_slice(&event.aggregate_type().len().to_le_bytes());
                buffer.extend_from_slice(event.aggregate_type());
            }
            if rules.template.has_event_type() {
                buffer.extend_from_slice(event.event_type());
            }
        }
    }
    buffer
}

/// Checks whether the event can be sent to the topic with this name, which is that of the event.
pub(crate) fn check<E: Event>(rules: &TopicRules, event: &E, name: &str) -> Result<(), Rejection> {
    if let Some(topic) = event.topic() {
        check_utf8("topic", topic)?;
    } else {
        check_utf8("aggregate_type", event.aggregate_type())?;
        if rules.template.has_event_type() {
            check_utf8("event_type", event.event_type())?;
        }
    }
    check_topic(name).map_err(|error| INVALID_TOPIC_NAME.rejection(error.to_string()))?;
    if event.topic().is_none() || rules.allows(name) {
        return Ok(());
    }
    Err(TOPIC_NOT_ALLOWED.rejection(match &rules.allow {
        Some(allow) => format!("the event names the topic {name}, but [outbox] topic_allow is \"{allow}\""),
        None => format!("the event names the topic {name}, but [outbox] topic_allow is not set"),
    }))
}

fn check_utf8(column: &str, text: &[u8]) -> Result<(), Rejection> {
    let error = || format!("{column} is not valid UTF-8, so it is not a valid topic name");
    std::str::from_utf8(text).map(drop).map_err(|_| INVALID_TOPIC_NAME.rejection(error()))
}

/// Names of topics, and prefixes of names, which end with a `*`. It is never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicAllow(Vec<String>);

impl TopicAllow {
    pub fn contains(&self, topic: &str) -> bool {
        self.0.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => topic.starts_with(prefix),
            None => topic == pattern,
        })
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str).filter(|pattern| !pattern.ends_with('*'))
    }
}

impl FromStr for TopicAllow {
    type Err = String;

    fn from_str(text: &str) -> Result<TopicAllow, String> {
        let patterns: Vec<String> = text.split(',').map(|pattern| pattern.trim().to_owned()).collect();
        patterns.iter().try_for_each(|pattern| check_pattern(pattern))?;
        Ok(TopicAllow(patterns))
    }
}

fn check_pattern(text: &str) -> Result<(), String> {
    let checked = match text.strip_suffix('*') {
        None if text.is_empty() => return Err("a name is empty".to_owned()),
        None => check_topic(text),
        Some("") => return Err("a prefix needs at least one character before the *".to_owned()),
        Some(prefix) => match check_topic(prefix) {
            // The prefixes of valid names.
            Ok(()) | Err(TopicError::Dots(_)) if prefix.len() < TOPIC_LENGTH_MAX => Ok(()),
            Ok(()) | Err(TopicError::Dots(_)) => Err(TopicError::TooLong { length: prefix.len() + 1 }),
            Err(error) => Err(error),
        },
    };
    checked.map_err(|error| format!("{text:?}: {error}"))
}

impl Value for TopicAllow {
    fn from_text(text: &str, setting: &Setting, _: &Reader) -> Result<TopicAllow, Problem> {
        let help = "for example \"audit.*, billing\"";
        text.parse().map_err(|error: String| Problem::new(format!("{setting}: {error}"), help))
    }

    fn shown(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl fmt::Display for TopicAllow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

#[cfg(test)]
mod tests;
