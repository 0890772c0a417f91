use thiserror::Error;

/// The longest topic name that Kafka takes, in characters.
pub const TOPIC_LENGTH_MAX: usize = 249;

/// Why Kafka would refuse a topic name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TopicError {
    /// The name has no characters.
    #[error("a topic name cannot be empty")]
    Empty,
    /// The name is `.` or `..`, which Kafka reserves.
    #[error("a topic cannot be called {0:?}")]
    Dots(&'static str),
    /// The name has more than [`TOPIC_LENGTH_MAX`] characters.
    #[error("a topic name has at most {TOPIC_LENGTH_MAX} characters, this one has {length}")]
    TooLong {
        /// How many characters the name has.
        length: usize,
    },
    /// The name holds a character other than `a-z A-Z 0-9 . _ -`.
    #[error("character {character:?} at position {position} is not one of a-z A-Z 0-9 . _ -")]
    IllegalCharacter {
        /// The first such character.
        character: char,
        /// Where it stands, in characters; the first one is 1.
        position: usize,
    },
}

/// Checks a topic name by Kafka's rule: `[a-zA-Z0-9._-]{1,249}`, but not `.` or `..`.
///
/// # Errors
///
/// The first thing that is wrong with the name.
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
    // All characters are ASCII here, so bytes count them.
    match topic.len() {
        length if length > TOPIC_LENGTH_MAX => Err(TopicError::TooLong { length }),
        _ => Ok(()),
    }
}

pub(super) fn is_legal(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legal_names_pass() {
        for topic in ["a", "...", "events.order", "Events_Order-2", &"x".repeat(249)] {
            assert_eq!(check_topic(topic), Ok(()), "{topic}");
        }
    }

    #[test]
    fn each_broken_rule_has_its_own_error() {
        assert_eq!(check_topic(""), Err(TopicError::Empty));
        assert_eq!(check_topic("."), Err(TopicError::Dots(".")));
        assert_eq!(check_topic(".."), Err(TopicError::Dots("..")));
        assert_eq!(check_topic(&"x".repeat(250)), Err(TopicError::TooLong { length: 250 }));
    }

    #[test]
    fn the_first_illegal_character_is_named_with_its_position() {
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
