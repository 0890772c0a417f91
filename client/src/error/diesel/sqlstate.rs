//! diesel does not hand on the SQLSTATE of an error. Some it has a kind for; others are recognised by what Postgres says
//! in English. A server with another `lc_messages` says it otherwise, and the SQLSTATE stays unknown.

use diesel::result::DatabaseErrorKind;

/// What matters to a caller of this crate: what may be tried again, what ends the connection, and what is missing. The
/// message begins with the first and holds the second.
const IN_ENGLISH: [(&str, &str, &str); 20] = [
    ("the lock of this idempotency key is not held any more", "", "OB001"),
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
    IN_ENGLISH.iter().find(like).map(|(_, _, sqlstate)| *sqlstate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_recognised_from_the_first_line_that_fits() {
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
