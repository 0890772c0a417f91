//! diesel does not expose the SQLSTATE of an error. It has a kind for some. This module recognizes others by their English
//! message. If the server has another `lc_messages`, the SQLSTATE is unknown.

use diesel::result::DatabaseErrorKind;

/// Errors that can be retried, that end the connection, or that report a missing object: the beginning of the message, another
/// part of it, and the SQLSTATE.
const ENGLISH_MESSAGES: [(&str, &str, &str); 20] = [
    ("the lock of this idempotency key is no longer held", "", "OB001"),
    ("deadlock detected", "", "40P01"),
    ("canceling statement due to lock timeout", "", "55P03"),
    ("could not obtain lock on ", "", "55P03"),
    ("canceling statement due to ", "", "57014"),
    ("terminating connection due to administrator command", "", "57P01"),
    ("terminating connection because of crash of another server process", "", "57P02"),
    ("terminating connection due to idle-session timeout", "", "57P05"),
    ("terminating connection due to idle-in-transaction timeout", "", "25P03"),
    ("current transaction is aborted", "", "25P02"),
    ("sorry, too many clients already", "", "53300"),
    ("permission denied for ", "", "42501"),
    ("relation ", " does not exist", "42P01"),
    ("schema ", " does not exist", "3F000"),
    ("function ", " does not exist", "42883"),
    ("column ", " does not exist", "42703"),
    ("column ", " but expression is of type ", "42804"),
    ("invalid input syntax for type ", "", "22P02"),
    ("invalid byte sequence for encoding ", "", "22021"),
    ("unsupported Unicode escape sequence", "", "22P05"),
];

pub(super) fn of(kind: &DatabaseErrorKind, message: &str) -> Option<&'static str> {
    Some(match kind {
        DatabaseErrorKind::SerializationFailure => "40001",
        DatabaseErrorKind::ReadOnlyTransaction => "25006",
        DatabaseErrorKind::UniqueViolation => "23505",
        DatabaseErrorKind::ForeignKeyViolation => "23503",
        DatabaseErrorKind::NotNullViolation => "23502",
        DatabaseErrorKind::CheckViolation => "23514",
        DatabaseErrorKind::RestrictViolation => "23001",
        DatabaseErrorKind::ExclusionViolation => "23P01",
        DatabaseErrorKind::Unknown => return in_english(message),
        _ => return None,
    })
}

fn in_english(message: &str) -> Option<&'static str> {
    let like = |(begin, part, _): &&(&str, &str, &str)| message.starts_with(begin) && message.contains(part);
    ENGLISH_MESSAGES.iter().find(like).map(|(_, _, sqlstate)| *sqlstate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_matching_message_determines_the_sqlstate() {
        for (message, sqlstate) in [
            ("canceling statement due to lock timeout", Some("55P03")),
            ("canceling statement due to statement timeout", Some("57014")),
            ("column \"payload\" is of type bytea but expression is of type json", Some("42804")),
            ("column \"payload\" of relation \"outbox\" does not exist", Some("42703")),
            ("Verklemmung entdeckt", None),
        ] {
            assert_eq!(of(&DatabaseErrorKind::Unknown, message), sqlstate, "{message}");
        }
        assert_eq!(of(&DatabaseErrorKind::ClosedConnection, "deadlock detected"), None);
    }
}
