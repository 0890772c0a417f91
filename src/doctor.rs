//! The codes of all findings of `doctor`. Each is defined next to its check. `docs/doctor.md` shows them, and a test compares.

use ::kafka::operate::doctor as kafka;
use ::postgres::diagnose::doctor::{connection, events, privileges, table};
use ::settings::doctor::{self, Code};

settings::codes! {
    OTHER_CLUSTER = Error, "other-cluster",
        "the outbox belongs to another PostgreSQL or Kafka cluster: this is a copy, or the outbox has moved; the relay stops \
         and publishes nothing";
    SYSTEM_HIDDEN = Note, "system-identifier-hidden",
        "the server does not show its system identifier, so a relay of a copy of the database is not stopped";
    RELAY_NOTE = Note, "relay-note",
        "the relay on this host is ready, and reports a change that consumers may notice";
}

/// Every code, in the order of `docs/doctor.md`.
pub fn all() -> impl Iterator<Item = &'static Code> {
    let groups = [
        table::CODES,
        privileges::CODES,
        connection::CODES,
        kafka::CODES,
        events::CODES,
        CODES,
        doctor::CODES,
    ];
    groups.into_iter().flatten().copied()
}

/// The code with this word.
pub fn code(word: &str) -> Option<&'static Code> {
    all().find(|code| code.word == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_code_has_a_unique_word_and_a_meaning() {
        let mut words = HashSet::new();
        for code in all() {
            assert!(words.insert(code.word), "{} twice", code.word);
            assert!(code.word.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{}", code.word);
            assert!(!code.means.is_empty() && !code.means.ends_with('.'), "{}", code.word);
            assert_eq!(super::code(code.word), Some(code));
        }
    }
}
