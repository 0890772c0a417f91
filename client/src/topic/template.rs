use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::name::{TOPIC_LENGTH_MAX, TopicError, check_topic, is_legal};

const PLACEHOLDER: &str = "aggregate_type";

/// Determines the topic of an event from its aggregate type, such as `events.{aggregate_type}`.
///
/// `{aggregate_type}` is the only placeholder, and can occur once. A template without it sends every event to one topic.
///
/// ```
/// use pg_outbox::topic::TopicTemplate;
///
/// let template = TopicTemplate::parse("events.{aggregate_type}.v1")?;
/// assert_eq!(template.topic("order"), "events.order.v1");
/// # Ok::<(), pg_outbox::topic::TemplateError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TopicTemplate {
    prefix: String,
    /// `None` if the template is constant. Then `prefix` is all of it.
    suffix: Option<String>,
}

/// Why a topic template is invalid. Positions are in characters from 1.
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
    #[error("the {{ at position {position} is not closed. Write {{aggregate_type}}")]
    UnclosedBrace {
        /// The position of the `{`.
        position: usize,
    },
    /// A `}` without a `{`.
    #[error("the }} at position {position} has no {{. Write {{aggregate_type}}")]
    UnopenedBrace {
        /// The position of the `}`.
        position: usize,
    },
    /// A placeholder other than `{aggregate_type}`.
    #[error(
        "unknown placeholder {{{name}}} at position {position}. The only placeholder is {{aggregate_type}}"
    )]
    UnknownPlaceholder {
        /// The text between the braces.
        name: String,
        /// The position of the `{`.
        position: usize,
    },
    /// A second `{aggregate_type}`.
    #[error("second {{aggregate_type}} at position {position}. The placeholder can occur only once")]
    RepeatedPlaceholder {
        /// The position of the second `{`.
        position: usize,
    },
    /// The fixed part leaves no room for an aggregate type.
    #[error(
        "the fixed part has {length} characters, which leaves no room for an aggregate type: a topic name has at most \
         {TOPIC_LENGTH_MAX} characters"
    )]
    NoRoom {
        /// The number of characters outside of the placeholder.
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
        let mut prefix = String::new();
        let mut suffix: Option<String> = None;
        let mut characters = template.chars().zip(1..);
        while let Some((character, position)) = characters.next() {
            match character {
                '{' => {
                    let name = placeholder_name(&mut characters, position)?;
                    if name != PLACEHOLDER {
                        return Err(TemplateError::UnknownPlaceholder { name, position });
                    }
                    if suffix.replace(String::new()).is_some() {
                        return Err(TemplateError::RepeatedPlaceholder { position });
                    }
                }
                '}' => return Err(TemplateError::UnopenedBrace { position }),
                _ if is_legal(character) => suffix.as_mut().unwrap_or(&mut prefix).push(character),
                _ => return Err(TemplateError::IllegalCharacter { character, position }),
            }
        }
        match &suffix {
            None => check_topic(&prefix)?,
            Some(suffix) => {
                let length = prefix.len() + suffix.len();
                if length >= TOPIC_LENGTH_MAX {
                    return Err(TemplateError::NoRoom { length });
                }
            }
        }
        Ok(TopicTemplate { prefix, suffix })
    }

    /// The topic for this aggregate type. To check it, call [`check_topic`].
    pub fn topic(&self, aggregate_type: &str) -> String {
        let mut topic = String::new();
        self.render(aggregate_type, &mut topic);
        topic
    }

    /// Like [`TopicTemplate::topic`], but replaces the content of an existing string.
    pub fn render(&self, aggregate_type: &str, topic: &mut String) {
        topic.clear();
        topic.push_str(&self.prefix);
        if let Some(suffix) = &self.suffix {
            topic.push_str(aggregate_type);
            topic.push_str(suffix);
        }
    }

    /// The text before the placeholder, or all of a constant template.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The text after the placeholder; empty for a constant template.
    pub fn suffix(&self) -> &str {
        self.suffix.as_deref().unwrap_or_default()
    }

    /// Whether every event goes to the same topic.
    pub fn is_constant(&self) -> bool {
        self.suffix.is_none()
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
        TopicTemplate { prefix: "events.".to_owned(), suffix: Some(String::new()) }
    }
}

impl fmt::Display for TopicTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.suffix {
            None => f.write_str(&self.prefix),
            Some(suffix) => write!(f, "{}{{{PLACEHOLDER}}}{suffix}", self.prefix),
        }
    }
}

impl FromStr for TopicTemplate {
    type Err = TemplateError;

    fn from_str(template: &str) -> Result<TopicTemplate, TemplateError> {
        TopicTemplate::parse(template)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(template: &str) -> TemplateError {
        TopicTemplate::parse(template).expect_err(template)
    }

    #[test]
    fn the_placeholder_can_be_anywhere() {
        for (template, topic, prefix, suffix) in [
            ("events.{aggregate_type}", "events.order", "events.", ""),
            ("{aggregate_type}", "order", "", ""),
            ("{aggregate_type}.v1", "order.v1", "", ".v1"),
            ("a-{aggregate_type}_b", "a-order_b", "a-", "_b"),
        ] {
            let parsed = TopicTemplate::parse(template).expect(template);
            assert_eq!(parsed.topic("order"), topic);
            assert_eq!((parsed.prefix(), parsed.suffix(), parsed.is_constant()), (prefix, suffix, false));
            assert_eq!(parsed.to_string(), template);
        }
        assert_eq!(TopicTemplate::default(), "events.{aggregate_type}".parse().unwrap());
    }

    #[test]
    fn a_template_can_be_constant() {
        let template = TopicTemplate::parse("everything").unwrap();
        assert_eq!((template.prefix(), template.suffix(), template.is_constant()), ("everything", "", true));
        assert_eq!(template.topic("order"), "everything");
        assert_eq!(template.to_string(), "everything");
    }

    #[test]
    fn rendering_replaces_the_content_of_the_string() {
        let mut topic = "old".to_owned();
        TopicTemplate::default().render("order", &mut topic);
        assert_eq!(topic, "events.order");
    }

    #[test]
    fn errors_have_the_position() {
        use TemplateError::*;
        assert_eq!(refused("a b"), IllegalCharacter { character: ' ', position: 2 });
        assert_eq!(refused("ä{aggregate_type}"), IllegalCharacter { character: 'ä', position: 1 });
        assert_eq!(refused("a.{aggregate_type"), UnclosedBrace { position: 3 });
        assert_eq!(refused("{{aggregate_type}}"), UnclosedBrace { position: 1 });
        assert_eq!(refused("aggregate_type}"), UnopenedBrace { position: 15 });
        assert_eq!(refused("{aggregate_type}{aggregate_type}"), RepeatedPlaceholder { position: 17 });
        assert_eq!(refused("x.{type}"), UnknownPlaceholder { name: "type".to_owned(), position: 3 });
        assert_eq!(refused("{}"), UnknownPlaceholder { name: String::new(), position: 1 });
        assert_eq!(refused(""), NotATopic(TopicError::Empty));
        assert_eq!(refused(".."), NotATopic(TopicError::Dots("..")));
        assert_eq!(refused(&format!("{}{{aggregate_type}}", "x".repeat(249))), NoRoom { length: 249 });
    }

    #[test]
    fn messages_name_the_right_placeholder() {
        assert_eq!(
            refused("x.{type}").to_string(),
            "unknown placeholder {type} at position 3. The only placeholder is {aggregate_type}"
        );
        assert_eq!(
            refused("a.{aggregate_type").to_string(),
            "the { at position 3 is not closed. Write {aggregate_type}"
        );
    }
}
