//! `[outbox] topic_allow`: the topics that an event may name in the optional column `topic`.

use std::fmt;
use std::str::FromStr;

use pg_outbox::topic::{TOPIC_LENGTH_MAX, TopicError, check_topic};
use settings::findings::Problem;
use settings::reader::Reader;
use settings::reader::Value;
use settings::setting::Setting;
use thiserror::Error;

/// Names of topics, and prefixes of names. It is never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicAllow(Vec<Pattern>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Name(String),
    Prefix(String),
}

/// Why a list is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TopicAllowError {
    /// There is no name between two commas.
    #[error("a name is empty")]
    Empty,
    /// A prefix without characters would allow every topic.
    #[error("a prefix needs at least one character before the *")]
    EmptyPrefix,
    /// A name or a prefix that no topic can have.
    #[error("{name:?}: {error}")]
    Invalid {
        /// As written.
        name: String,
        /// What is wrong.
        error: TopicError,
    },
}

impl TopicAllow {
    /// Whether an event may name this topic.
    pub fn contains(&self, topic: &str) -> bool {
        self.0.iter().any(|pattern| match pattern {
            Pattern::Name(name) => name == topic,
            Pattern::Prefix(prefix) => topic.starts_with(prefix),
        })
    }

    /// The names that are not prefixes.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|pattern| match pattern {
            Pattern::Name(name) => Some(name.as_str()),
            Pattern::Prefix(_) => None,
        })
    }
}

impl FromStr for TopicAllow {
    type Err = TopicAllowError;

    fn from_str(text: &str) -> Result<TopicAllow, TopicAllowError> {
        text.split(',').map(|name| pattern(name.trim())).collect::<Result<_, _>>().map(TopicAllow)
    }
}

fn pattern(text: &str) -> Result<Pattern, TopicAllowError> {
    let invalid = |error| TopicAllowError::Invalid { name: text.to_owned(), error };
    match text.strip_suffix('*') {
        None if text.is_empty() => Err(TopicAllowError::Empty),
        None => check_topic(text).map(|()| Pattern::Name(text.to_owned())).map_err(invalid),
        Some("") => Err(TopicAllowError::EmptyPrefix),
        Some(prefix) => match check_topic(prefix) {
            // The prefixes of valid names.
            Ok(()) | Err(TopicError::Dots(_)) if prefix.len() < TOPIC_LENGTH_MAX => {
                Ok(Pattern::Prefix(prefix.to_owned()))
            }
            Ok(()) | Err(TopicError::Dots(_)) => {
                Err(invalid(TopicError::TooLong { length: prefix.len() + 1 }))
            }
            Err(error) => Err(invalid(error)),
        },
    }
}

impl Value for TopicAllow {
    fn from_text(text: &str, setting: &Setting, _: &Reader) -> Result<TopicAllow, Problem> {
        let help = "for example \"audit.*, billing\"";
        text.parse().map_err(|error: TopicAllowError| Problem::new(format!("{setting}: {error}"), help))
    }

    fn shown(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl fmt::Display for TopicAllow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pattern) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            match pattern {
                Pattern::Name(name) => write!(f, "{comma}{name}")?,
                Pattern::Prefix(prefix) => write!(f, "{comma}{prefix}*")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(text: &str) -> TopicAllow {
        text.parse().unwrap()
    }

    #[test]
    fn names_and_prefixes_allow_only_what_they_match() {
        let allow = allow("billing, audit.*,.*");
        for topic in ["billing", "audit.", "audit.orders", ".a", ".."] {
            assert!(allow.contains(topic), "{topic}");
        }
        for topic in ["", "billin", "billing2", "audit", "Audit.orders", "x.audit.orders", "*"] {
            assert!(!allow.contains(topic), "{topic}");
        }
        assert_eq!(allow.to_string(), "billing, audit.*, .*");
    }

    #[test]
    fn invalid_lists_have_one_message_each() {
        let refused = |text: &str| text.parse::<TopicAllow>().expect_err(text).to_string();
        for (text, error) in [
            ("", "a name is empty"),
            ("a,,b", "a name is empty"),
            ("a, ", "a name is empty"),
            ("*", "a prefix needs at least one character before the *"),
            ("a, *", "a prefix needs at least one character before the *"),
        ] {
            assert_eq!(refused(text), error, "{text:?}");
        }
        assert!(refused("a*b").starts_with("\"a*b\": character '*' at position 2"), "{}", refused("a*b"));
        assert!(refused("a b*").starts_with("\"a b*\": character ' ' at position 2"), "{}", refused("a b*"));
        assert!(refused("a**").starts_with("\"a**\": character '*' at position 2"), "{}", refused("a**"));
        assert!(refused("..").contains("reserves"), "{}", refused(".."));
        assert!(refused(&format!("{}*", "x".repeat(249))).contains("250 characters"));
    }
}
