//! From what was written to a value of the right kind and in range.

use std::fmt::Display;
use std::time::Duration;

use super::catalogue::{Kind, Setting};
use super::findings::Problem;
use super::nearest::nearest;
use super::size::ByteSize;

/// A value as it was written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Raw {
    /// From the environment, where everything is text.
    Variable(String),
    /// From the file.
    String(String),
    Integer(i64),
    Boolean(bool),
    List(Vec<String>),
    /// A type of TOML that no setting has.
    Other(&'static str),
}

/// A value of the kind that its setting asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(String),
    Flag(bool),
    Words(Vec<String>),
    Count(u64),
    Size(ByteSize),
    Span(Duration),
}

impl Raw {
    fn type_name(&self) -> &'static str {
        match self {
            Raw::Variable(_) | Raw::String(_) => "a string",
            Raw::Integer(_) => "an integer",
            Raw::Boolean(_) => "a boolean",
            Raw::List(_) => "a list",
            Raw::Other(name) => name,
        }
    }
}

pub(super) fn parse(setting: &Setting, raw: &Raw) -> Result<Value, Problem> {
    let name = format!("[{}] {}", setting.section, setting.key);
    let wrong_type = |wanted: &str, example: &str| {
        let message = match raw {
            Raw::Variable(_) => format!("{name} must be {wanted}"),
            _ => format!("{name} must be {wanted}, not {}", raw.type_name()),
        };
        Problem::new(message, format!("for instance {} = {example}", setting.key))
    };
    match (setting.kind, raw) {
        (Kind::Text | Kind::File, Raw::Variable(text) | Raw::String(text)) => Ok(Value::Text(text.clone())),
        (Kind::Text | Kind::File, _) => Err(wrong_type("a string", "\"...\"")),
        (Kind::Flag, Raw::Boolean(flag)) => Ok(Value::Flag(*flag)),
        (Kind::Flag, Raw::Variable(text)) if text == "true" || text == "false" => {
            Ok(Value::Flag(text == "true"))
        }
        (Kind::Flag, _) => Err(wrong_type("true or false", "true")),
        (Kind::Choice(words), Raw::Variable(text) | Raw::String(text)) => {
            one_of(&name, words, text).map(Value::Text)
        }
        (Kind::Choice(words), _) => Err(wrong_type("a string", &format!("{:?}", words[0]))),
        (Kind::Words(words), Raw::Variable(text)) => {
            let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
            parts.map(|part| one_of(&name, words, part)).collect::<Result<_, _>>().map(Value::Words)
        }
        (Kind::Words(words), Raw::List(parts)) => {
            parts.iter().map(|part| one_of(&name, words, part)).collect::<Result<_, _>>().map(Value::Words)
        }
        (Kind::Words(words), _) => Err(wrong_type("a list of strings", &format!("[{:?}]", words[0]))),
        (Kind::Count(min, max), raw) => {
            let number = match raw {
                Raw::Integer(number) => i128::from(*number),
                Raw::Variable(text) => {
                    text.trim().parse().map_err(|_| wrong_type("a whole number", "100"))?
                }
                _ => return Err(wrong_type("a whole number", "100")),
            };
            let in_range = u64::try_from(number).ok().filter(|number| (min..=max).contains(number));
            in_range.map(Value::Count).ok_or_else(|| out_of_range(&name, number, min, max))
        }
        (Kind::Size(min, max), raw) => {
            let size = match raw {
                Raw::Integer(number) if *number < 0 => Err(*number),
                Raw::Integer(number) => Ok(ByteSize::bytes(number.unsigned_abs())),
                Raw::Variable(text) | Raw::String(text) => {
                    let malformed =
                        |problem| Problem::new(format!("{name} is {problem}"), "for instance \"8MiB\"");
                    Ok(text.parse().map_err(malformed)?)
                }
                _ => return Err(wrong_type("a size", "\"8MiB\"")),
            };
            let (min, max) = (ByteSize::bytes(min), ByteSize::bytes(max));
            match size {
                Ok(size) if (min..=max).contains(&size) => Ok(Value::Size(size)),
                Ok(size) => Err(out_of_range(&name, size, min, max)),
                Err(negative) => Err(out_of_range(&name, negative, min, max)),
            }
        }
        (Kind::Span(min, max), Raw::Variable(text) | Raw::String(text)) => {
            let span = humantime::parse_duration(text.trim()).map_err(|problem| {
                let message = format!("{name} is not a duration: {problem}");
                Problem::new(
                    message,
                    "a number and a unit, for instance \"50ms\", \"10s\", \"1h 30m\" or \"7d\"",
                )
            })?;
            let show = humantime::format_duration;
            if (min..=max).contains(&span) {
                Ok(Value::Span(span))
            } else {
                Err(out_of_range(&name, show(span), show(min), show(max)))
            }
        }
        (Kind::Span(..), Raw::Integer(number)) => Err(Problem::new(
            format!("{name} has no unit"),
            format!("write {} = \"{number}s\" for seconds, \"{number}ms\" for milliseconds", setting.key),
        )),
        (Kind::Span(..), _) => Err(wrong_type("a duration", "\"10s\"")),
        (Kind::Properties, _) => Err(wrong_type("a table", "{ \"client.id\" = \"relay\" }")),
    }
}

fn one_of(name: &str, words: &[&str], text: &str) -> Result<String, Problem> {
    if words.contains(&text) {
        return Ok(text.to_owned());
    }
    let help = match nearest(text, words.iter().copied()) {
        Some(word) => format!("did you mean \"{word}\"?"),
        None => String::new(),
    };
    Err(Problem::new(format!("{name} is {text:?}, and must be one of {}", words.join(", ")), help))
}

fn out_of_range(name: &str, value: impl Display, min: impl Display, max: impl Display) -> Problem {
    Problem::new(format!("{name} is {value}, and must be from {min} to {max}"), "")
}
