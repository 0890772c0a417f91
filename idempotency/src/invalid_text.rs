use thiserror::Error;

/// Why a text value was rejected. No statement was sent, so the transaction is unchanged. Messages never contain the text.
///
/// ```
/// use pg_idempotency::{InvalidText, idempotency::Key};
///
/// assert_eq!(Key::new(""), Err(InvalidText::Empty { field: "the idempotency key" }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidText {
    /// The text is empty.
    #[error("{field} is empty")]
    Empty {
        /// The field.
        field: &'static str,
    },
    /// The text is too long.
    #[error("{field} has {bytes} bytes, but the maximum is {max}")]
    TooLong {
        /// The field.
        field: &'static str,
        /// The length in UTF-8.
        bytes: usize,
        /// The maximum length.
        max: usize,
    },
    /// The text contains an invalid character.
    #[error("{field} contains {character:?} at byte {position}. {rule}")]
    Character {
        /// The field.
        field: &'static str,
        /// The character.
        character: char,
        /// Its position, in bytes from 0.
        position: usize,
        /// A sentence about the allowed characters.
        rule: &'static str,
    },
}

/// Accepts 1 to `max` bytes without U+0000.
pub(crate) fn check_text(field: &'static str, text: &str, max: usize) -> Result<(), InvalidText> {
    check_characters(field, text, max, "PostgreSQL cannot store U+0000", |c| c != '\0')
}

/// Accepts 1 to `max` bytes of characters for which `is_allowed` returns true.
pub(crate) fn check_characters(
    field: &'static str,
    text: &str,
    max: usize,
    rule: &'static str,
    is_allowed: impl Fn(char) -> bool,
) -> Result<(), InvalidText> {
    if text.is_empty() {
        return Err(InvalidText::Empty { field });
    }
    if text.len() > max {
        return Err(InvalidText::TooLong { field, bytes: text.len(), max });
    }
    match text.char_indices().find(|&(_, character)| !is_allowed(character)) {
        Some((position, character)) => Err(InvalidText::Character { field, character, position, rule }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_1_to_the_maximum_number_of_bytes() {
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
