use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::{TOPIC_LENGTH_MAX, TopicError, check_topic, is_legal};

const AGGREGATE_TYPE: &str = "aggregate_type";
const EVENT_TYPE: &str = "event_type";

/// Determines the topic of an event from its aggregate type and its event type, such as `events.{aggregate_type}`.
///
/// The placeholders are `{aggregate_type}` and `{event_type}`. Each can occur once, in any position. A template without
/// placeholders sends every event to one topic.
///
/// ```
/// use pg_outbox::topic::{TopicPart, TopicTemplate};
///
/// let template = TopicTemplate::parse("shop.{aggregate_type}.v1")?;
/// assert_eq!(template.topic("order", "OrderPaid"), "shop.order.v1");
/// assert!(template.matches("shop.order.v1") && !template.matches("order"));
/// assert!(template.is_by_aggregate_type() && !template.has_event_type() && !template.is_constant());
/// assert_eq!(template.parts()[..2], [TopicPart::Text("shop.".to_owned()), TopicPart::AggregateType]);
/// assert_eq!((template.prefix(), template.suffix()), ("shop.", ".v1"));
///
/// let mut topic = String::new();
/// TopicTemplate::default().render("order", "OrderPaid", &mut topic);
/// assert_eq!(topic, "events.order");
/// # Ok::<(), pg_outbox::topic::TemplateError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TopicTemplate {
    /// No text is empty, and no two texts are adjacent.
    parts: Vec<TopicPart>,
}

/// A part of a [`TopicTemplate`].
///
/// ```
/// use pg_outbox::topic::{TopicPart, TopicTemplate};
///
/// assert_eq!(TopicTemplate::default().parts()[1], TopicPart::AggregateType);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TopicPart {
    /// The same text in every topic.
    Text(String),
    /// The aggregate type of the event.
    AggregateType,
    /// The event type of the event.
    EventType,
}

/// Why a topic template is invalid. Positions are in characters from 1.
///
/// ```
/// use pg_outbox::topic::{TemplateError, TopicTemplate};
///
/// let error = TopicTemplate::parse("events.{type}").unwrap_err();
/// assert_eq!(error, TemplateError::UnknownPlaceholder { name: "type".to_owned(), position: 8 });
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// A character that topic names cannot contain.
    #[error("character {character:?} at position {position} is not one of a-z A-Z 0-9 . _ -")]
    IllegalCharacter {
        /// The first such character.
        character: char,
        /// Its position.
        position: usize,
    },
    /// A `{` without a `}`.
    #[error("the {{ at position {position} is not closed. Write {{aggregate_type}} or {{event_type}}")]
    UnclosedBrace {
        /// The position of the `{`.
        position: usize,
    },
    /// A `}` without a `{`.
    #[error("the }} at position {position} has no {{. Write {{aggregate_type}} or {{event_type}}")]
    UnopenedBrace {
        /// The position of the `}`.
        position: usize,
    },
    /// A placeholder other than `{aggregate_type}` and `{event_type}`.
    #[error(
        "unknown placeholder {{{name}}} at position {position}. The placeholders are {{aggregate_type}} and \
         {{event_type}}"
    )]
    UnknownPlaceholder {
        /// The text between the braces.
        name: String,
        /// The position of the `{`.
        position: usize,
    },
    /// A placeholder that occurs a second time.
    #[error("second {{{name}}} at position {position}. A placeholder can occur only once")]
    RepeatedPlaceholder {
        /// The text between the braces.
        name: String,
        /// The position of the second `{`.
        position: usize,
    },
    /// The fixed part leaves no room for the placeholders.
    #[error(
        "the fixed part has {length} characters, which leaves no room for the placeholders: a topic name has at most \
         {TOPIC_LENGTH_MAX} characters"
    )]
    NoRoom {
        /// The number of characters outside of the placeholders.
        length: usize,
    },
    /// A template without a placeholder that is not a topic name.
    #[error(transparent)]
    NotATopic(#[from] TopicError),
}

impl TopicTemplate {
    /// Parses a template.
    ///
    /// # Errors
    ///
    /// The first problem of the template.
    pub fn parse(template: &str) -> Result<TopicTemplate, TemplateError> {
        let mut parts: Vec<TopicPart> = Vec::new();
        let mut characters = template.chars().zip(1..);
        while let Some((character, position)) = characters.next() {
            match character {
                '{' => {
                    let name = placeholder_name(&mut characters, position)?;
                    let part = match name.as_str() {
                        AGGREGATE_TYPE => TopicPart::AggregateType,
                        EVENT_TYPE => TopicPart::EventType,
                        _ => return Err(TemplateError::UnknownPlaceholder { name, position }),
                    };
                    if parts.contains(&part) {
                        return Err(TemplateError::RepeatedPlaceholder { name, position });
                    }
                    parts.push(part);
                }
                '}' => return Err(TemplateError::UnopenedBrace { position }),
                _ if is_legal(character) => match parts.last_mut() {
                    Some(TopicPart::Text(text)) => text.push(character),
                    _ => parts.push(TopicPart::Text(character.into())),
                },
                _ => return Err(TemplateError::IllegalCharacter { character, position }),
            }
        }
        TopicTemplate { parts }.checked()
    }

    /// Checks the length and, without a placeholder, the whole name.
    fn checked(self) -> Result<TopicTemplate, TemplateError> {
        if self.is_constant() {
            check_topic(self.prefix())?;
            return Ok(self);
        }
        let texts = self.parts.iter().filter_map(TopicPart::text);
        let (count, length) = texts.fold((0, 0), |(count, length), text| (count + 1, length + text.len()));
        if length + self.parts.len() - count > TOPIC_LENGTH_MAX {
            return Err(TemplateError::NoRoom { length });
        }
        Ok(self)
    }

    /// The topic of an event with these types. To check it, call [`check_topic`].
    pub fn topic(&self, aggregate_type: &str, event_type: &str) -> String {
        let mut topic = String::new();
        self.render(aggregate_type, event_type, &mut topic);
        topic
    }

    /// Like [`TopicTemplate::topic`], but replaces the content of an existing string.
    pub fn render(&self, aggregate_type: &str, event_type: &str, topic: &mut String) {
        topic.clear();
        for part in &self.parts {
            topic.push_str(match part {
                TopicPart::Text(text) => text,
                TopicPart::AggregateType => aggregate_type,
                TopicPart::EventType => event_type,
            });
        }
    }

    /// The parts, in order. No text is empty, and no two texts are adjacent.
    pub fn parts(&self) -> &[TopicPart] {
        &self.parts
    }

    /// The text before the first placeholder, or all of a constant template.
    pub fn prefix(&self) -> &str {
        self.parts.first().and_then(TopicPart::text).unwrap_or_default()
    }

    /// The text after the last placeholder; empty for a constant template.
    pub fn suffix(&self) -> &str {
        if self.is_constant() {
            return "";
        }
        self.parts.last().and_then(TopicPart::text).unwrap_or_default()
    }

    /// Whether every event goes to the same topic.
    pub fn is_constant(&self) -> bool {
        self.parts.iter().all(|part| part.text().is_some())
    }

    /// Whether `{event_type}` is a part of the template.
    pub fn has_event_type(&self) -> bool {
        self.parts.contains(&TopicPart::EventType)
    }

    /// Whether `{aggregate_type}` is the only placeholder. Only then is it certain that two aggregate types never share a
    /// topic, and that an aggregate type has only one topic.
    pub fn is_by_aggregate_type(&self) -> bool {
        !self.has_event_type() && self.parts.contains(&TopicPart::AggregateType)
    }

    /// Whether an event can have this topic. The types of an event are not empty.
    pub fn matches(&self, topic: &str) -> bool {
        check_topic(topic).is_ok() && matches(&self.parts, topic)
    }
}

impl TopicPart {
    /// The text, unless it is a placeholder.
    fn text(&self) -> Option<&str> {
        match self {
            TopicPart::Text(text) => Some(text),
            TopicPart::AggregateType | TopicPart::EventType => None,
        }
    }
}

/// Whether these parts can become this text, which is ASCII. A placeholder becomes at least one character.
fn matches(parts: &[TopicPart], topic: &str) -> bool {
    match parts {
        [] => topic.is_empty(),
        [TopicPart::Text(text), rest @ ..] => {
            topic.strip_prefix(text.as_str()).is_some_and(|topic| matches(rest, topic))
        }
        [_, rest @ ..] => (1..=topic.len()).any(|end| matches(rest, &topic[end..])),
    }
}

fn placeholder_name(
    characters: &mut impl Iterator<Item = (char, usize)>,
    position: usize,
) -> Result<String, TemplateError> {
    let mut name = String::new();
    for (character, _) in characters {
        match character {
            '}' => return Ok(name),
            '{' => break,
            _ => name.push(character),
        }
    }
    Err(TemplateError::UnclosedBrace { position })
}

impl Default for TopicTemplate {
    /// `events.{aggregate_type}`
    fn default() -> TopicTemplate {
        TopicTemplate { parts: vec![TopicPart::Text("events.".to_owned()), TopicPart::AggregateType] }
    }
}

impl fmt::Display for TopicTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.iter().try_for_each(|part| match part {
            TopicPart::Text(text) => f.write_str(text),
            TopicPart::AggregateType => write!(f, "{{{AGGREGATE_TYPE}}}"),
            TopicPart::EventType => write!(f, "{{{EVENT_TYPE}}}"),
        })
    }
}

impl FromStr for TopicTemplate {
    type Err = TemplateError;

    fn from_str(template: &str) -> Result<TopicTemplate, TemplateError> {
        TopicTemplate::parse(template)
    }
}

#[cfg(test)]
mod tests;
