use thiserror::Error;

/// Why a text that identifies something was refused. Found before Postgres was asked anything: a transaction
/// is as it was. No message holds the text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidText {
    /// Nothing is in it.
    #[error("{field} is empty")]
    Empty {
        /// Which text.
        field: &'static str,
    },
    /// It has more bytes than the table takes.
    #[error("{field} has {bytes} bytes; at most {max} are possible")]
    TooLong {
        /// Which text.
        field: &'static str,
        /// How many it has, in UTF-8.
        bytes: usize,
        /// How many it may have.
        max: usize,
    },
    /// A character that has no place in it.
    #[error("{field} holds {character:?} at byte {position}, which is not possible there: {rule}")]
    Character {
        /// Which text.
        field: &'static str,
        /// The character.
        character: char,
        /// Its place, in bytes from 0.
        position: usize,
        /// What is possible.
        rule: &'static str,
    },
}

/// Accepts 1 to `max` bytes without the one character that Postgres cannot store.
pub(crate) fn check_text(field: &'static str, text: &str, max: usize) -> Result<(), InvalidText> {
    check_characters(field, text, max, "Postgres stores any but U+0000", |c| c != '\0')
}

/// Accepts 1 to `max` bytes of characters that `fits`.
pub(crate) fn check_characters(
    field: &'static str,
    text: &str,
    max: usize,
    rule: &'static str,
    fits: impl Fn(char) -> bool,
) -> Result<(), InvalidText> {
    if text.is_empty() {
        return Err(InvalidText::Empty { field });
    }
    if text.len() > max {
        return Err(InvalidText::TooLong { field, bytes: text.len(), max });
    }
    match text.char_indices().find(|&(_, character)| !fits(character)) {
        Some((position, character)) => Err(InvalidText::Character { field, character, position, rule }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_are_where_they_are_said_to_be() {
        assert_eq!(check_text("id", &"x".repeat(255), 255), Ok(()));
        assert_eq!(check_text("id", "größe", 255), Ok(()));
        assert_eq!(check_text("id", "", 255), Err(InvalidText::Empty { field: "id" }));
        assert_eq!(
            check_text("id", &"ä".repeat(128), 255),
            Err(InvalidText::TooLong { field: "id", bytes: 256, max: 255 })
        );
        assert!(matches!(
            check_text("id", "a\0", 255),
            Err(InvalidText::Character { character: '\0', position: 1, .. })
        ));
    }
}
