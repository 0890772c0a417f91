//! The topic of an event: the template, and Kafka's rules for topic names.
//!
//! The relay uses this module too, so that names are checked in the same way when an event is enqueued and when it is
//! published.
//!
//! ```
//! use pg_outbox::topic::{TopicError, TopicTemplate, check_topic};
//!
//! let template = TopicTemplate::parse("events.{aggregate_type}")?;
//! assert_eq!(check_topic(&template.topic("order", "OrderPaid")), Ok(()));
//! assert_eq!(check_topic(""), Err(TopicError::Empty));
//! # Ok::<(), pg_outbox::topic::TemplateError>(())
//! ```

mod template;

use thiserror::Error;

pub use template::{TemplateError, TopicPart, TopicTemplate};

/// The maximum length of a topic name in Kafka.
pub const TOPIC_LENGTH_MAX: usize = 249;

/// Why Kafka would reject a topic name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TopicError {
    /// The name is empty.
    #[error("the topic name is empty")]
    Empty,
    /// The name is `.` or `..`, which Kafka reserves.
    #[error("Kafka reserves the topic name {0:?}")]
    Dots(&'static str),
    /// The name has more than [`TOPIC_LENGTH_MAX`] characters.
    #[error("the topic name has {length} characters, but the maximum is {TOPIC_LENGTH_MAX}")]
    TooLong {
        /// The number of characters.
        length: usize,
    },
    /// The name contains a character other than `a-z A-Z 0-9 . _ -`.
    #[error("character {character:?} at position {position} is not one of a-z A-Z 0-9 . _ -")]
    IllegalCharacter {
        /// The first such character.
        character: char,
        /// Its position, in characters from 1.
        position: usize,
    },
}

/// Checks a topic name by Kafka's rules: `[a-zA-Z0-9._-]{1,249}`, but not `.` or `..`.
///
/// # Errors
///
/// The first violated rule.
///
/// ```
/// use pg_outbox::topic::{TopicError, check_topic};
///
/// assert_eq!(check_topic("events.order"), Ok(()));
/// assert_eq!(check_topic("my topic"), Err(TopicError::IllegalCharacter { character: ' ', position: 3 }));
/// ```
pub fn check_topic(topic: &str) -> Result<(), TopicError> {
    match topic {
        "" => return Err(TopicError::Empty),
        "." => return Err(TopicError::Dots(".")),
        ".." => return Err(TopicError::Dots("..")),
        _ => {}
    }
    if let Some((index, character)) = topic.chars().enumerate().find(|&(_, c)| !is_legal(c)) {
        return Err(TopicError::IllegalCharacter { character, position: index + 1 });
    }
    // All characters are ASCII here, so the number of bytes is the number of characters.
    match topic.len() {
        length if length > TOPIC_LENGTH_MAX => Err(TopicError::TooLong { length }),
        _ => Ok(()),
    }
}

fn is_legal(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_names_are_accepted() {
        for topic in ["a", "...", "events.order", "Events_Order-2", &"x".repeat(249)] {
            assert_eq!(check_topic(topic), Ok(()), "{topic}");
        }
    }

    #[test]
    fn each_violated_rule_has_its_own_error() {
        assert_eq!(check_topic(""), Err(TopicError::Empty));
        assert_eq!(check_topic("."), Err(TopicError::Dots(".")));
        assert_eq!(check_topic(".."), Err(TopicError::Dots("..")));
        assert_eq!(check_topic(&"x".repeat(250)), Err(TopicError::TooLong { length: 250 }));
    }

    #[test]
    fn the_error_has_the_first_illegal_character_and_its_position() {
        let illegal = |character, position| Err(TopicError::IllegalCharacter { character, position });
        assert_eq!(check_topic("a/b c"), illegal('/', 2));
        assert_eq!(check_topic("überweisung"), illegal('ü', 1));
        assert_eq!(check_topic("größe"), illegal('ö', 3));
        assert_eq!(check_topic("a\n"), illegal('\n', 2));
        assert_eq!(
            check_topic("a\u{0}").unwrap_err().to_string(),
            "character '\\0' at position 2 is not one of a-z A-Z 0-9 . _ -"
        );
    }
}
