//! Checks the type and range of a value, and converts it.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use humantime::format_duration;
use pg_outbox::topic::TopicTemplate;

use crate::findings::Problem;
use crate::nearest::nearest;
use crate::reader::Reader;
use crate::setting::{Fallback, Kind, Setting};
use crate::size::ByteSize;

/// A value as written in the source.
#[derive(Clone, Debug, PartialEq)]
pub enum Raw {
    /// From the environment, where every value is text.
    Variable(String),
    /// From the file, as the following ones.
    String(String),
    Integer(i64),
    Boolean(bool),
    List(Vec<String>),
    /// Of a TOML type that no setting has.
    Other(&'static str),
}

impl Raw {
    /// A single value as text, as in the environment.
    pub fn text(&self) -> Option<String> {
        match self {
            Raw::Variable(text) | Raw::String(text) => Some(text.clone()),
            Raw::Integer(number) => Some(number.to_string()),
            Raw::Boolean(flag) => Some(flag.to_string()),
            Raw::List(_) | Raw::Other(_) => None,
        }
    }

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

/// Checks a value against the kind of its setting. Returns it as text, as in the environment.
pub fn parse(setting: &Setting, raw: &Raw) -> Result<String, Problem> {
    let wrong = || wrong_type(setting, raw);
    let text = match (setting.kind, raw) {
        (_, Raw::Variable(text)) => text.clone(),
        (Kind::Count(..) | Kind::Flag | Kind::Command, Raw::String(_)) => return Err(wrong()),
        // An array of strings as a text, as in an environment variable.
        (Kind::Command, Raw::List(words)) => toml::Value::from(words.clone()).to_string(),
        (_, Raw::String(text)) => text.clone(),
        (Kind::Flag, Raw::Boolean(flag)) => flag.to_string(),
        (Kind::Count(..) | Kind::Size(..), Raw::Integer(number)) => number.to_string(),
        (Kind::Span(..), Raw::Integer(number)) => {
            let help = format!(
                "write {0} = \"{number}s\" for seconds, or \"{number}ms\" for milliseconds",
                setting.key
            );
            return Err(Problem::new(format!("{setting} has no unit"), help));
        }
        _ => return Err(wrong()),
    };
    match setting.kind {
        Kind::Text | Kind::File | Kind::Command => {}
        Kind::Flag => {
            text.parse::<bool>().map_err(|_| wrong())?;
        }
        Kind::Choice(words) => one_of(setting, words, &text)?,
        Kind::Count(min, max) => {
            let number: i128 = text.trim().parse().map_err(|_| wrong())?;
            in_range(setting, number, min.into(), max.into(), |number| number)?;
        }
        Kind::Size(min, max) => match text.parse::<ByteSize>() {
            Ok(size) => in_range(setting, size.as_u64(), min, max, ByteSize::bytes)?,
            Err(_) if text.parse::<i64>().is_ok() => {
                let (min, max) = (ByteSize::bytes(min), ByteSize::bytes(max));
                return Err(out_of_range(setting, text, min, max));
            }
            Err(invalid) => {
                return Err(Problem::new(format!("{setting} is {text:?}, which is {invalid}"), ""));
            }
        },
        Kind::Span(min, max) => {
            in_range(setting, duration(&text, setting)?, min, max, format_duration)?;
        }
        Kind::Table(_) => return Err(wrong()),
    }
    Ok(text)
}

fn wrong_type(setting: &Setting, raw: &Raw) -> Problem {
    let (Fallback::Default(text) | Fallback::Unset(text) | Fallback::Required(text)) = setting.fallback;
    let (wanted, example) = match setting.kind {
        Kind::Text | Kind::File => ("a string", format!("{text:?}")),
        Kind::Flag => ("true or false", "true".to_owned()),
        Kind::Choice(words) => ("a string", format!("{:?}", words[0])),
        Kind::Count(..) => ("a whole number", text.to_owned()),
        Kind::Size(..) => ("a size", format!("{text:?}")),
        Kind::Span(..) => ("a duration", format!("{text:?}")),
        Kind::Command => ("an array of strings", text.to_owned()),
        Kind::Table(table) => ("a table", table.example.to_owned()),
    };
    let message = match raw {
        Raw::Variable(_) => format!("{setting} must be {wanted}"),
        _ => format!("{setting} must be {wanted}, not {}", raw.type_name()),
    };
    Problem::new(message, format!("for example {} = {example}", setting.key))
}

fn one_of(setting: &Setting, words: &[&str], text: &str) -> Result<(), Problem> {
    if words.contains(&text) { Ok(()) } else { Err(unknown_word(setting, words, text)) }
}

pub fn unknown_word(setting: &Setting, words: &[&str], text: &str) -> Problem {
    let near = nearest(text, words.iter().copied());
    let help = near.map(|word| format!("did you mean \"{word}\"?")).unwrap_or_default();
    Problem::new(format!("{setting} is {text:?}, but must be one of {}", words.join(", ")), help)
}

fn in_range<T: PartialOrd + Copy, S: Display>(
    setting: &Setting,
    value: T,
    min: T,
    max: T,
    show: fn(T) -> S,
) -> Result<(), Problem> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(out_of_range(setting, show(value), show(min), show(max)))
}

fn out_of_range(setting: &Setting, value: impl Display, min: impl Display, max: impl Display) -> Problem {
    Problem::new(format!("{setting} is {value}, but must be from {min} to {max}"), "")
}

/// A type of a setting. A new type decides here whether its values are shown.
pub trait Value: Sized {
    /// Converts a text that [`parse`] has accepted.
    fn from_text(text: &str, setting: &Setting, reader: &Reader) -> Result<Self, Problem>;

    /// The value of a setting that is not set and has no default.
    fn unset() -> Option<Self> {
        None
    }

    /// The value as text, without secrets. `None` if the setting has no value.
    fn shown(&self) -> Option<String>;
}

impl<T: Value> Value for Option<T> {
    fn from_text(text: &str, setting: &Setting, reader: &Reader) -> Result<Self, Problem> {
        T::from_text(text, setting, reader).map(Some)
    }

    fn unset() -> Option<Self> {
        Some(None)
    }

    fn shown(&self) -> Option<String> {
        self.as_ref()?.shown()
    }
}

impl Value for PathBuf {
    fn from_text(text: &str, setting: &Setting, reader: &Reader) -> Result<PathBuf, Problem> {
        reader.readable_file(setting.section, &setting.to_string(), text)
    }

    fn shown(&self) -> Option<String> {
        Some(self.display().to_string())
    }
}

impl Value for Duration {
    fn from_text(text: &str, setting: &Setting, _: &Reader) -> Result<Duration, Problem> {
        duration(text, setting)
    }

    fn shown(&self) -> Option<String> {
        Some(format_duration(*self).to_string())
    }
}

impl Value for SocketAddr {
    fn from_text(text: &str, setting: &Setting, _: &Reader) -> Result<SocketAddr, Problem> {
        text.parse().map_err(|_| {
            let message = format!("{setting} is {text:?}, which is not an IP address with a port");
            Problem::new(message, "for example \"127.0.0.1:10187\", \"[::]:10187\" or \"off\"")
        })
    }

    fn shown(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for TopicTemplate {
    fn from_text(text: &str, setting: &Setting, _: &Reader) -> Result<TopicTemplate, Problem> {
        TopicTemplate::parse(text).map_err(|error| rejected(setting, &error))
    }

    fn shown(&self) -> Option<String> {
        Some(self.to_string())
    }
}

fn duration(text: &str, setting: &Setting) -> Result<Duration, Problem> {
    humantime::parse_duration(text.trim()).map_err(|_| {
        let help = "write a number and a unit, for example \"50ms\", \"10s\", \"1h 30m\" or \"7d\"";
        Problem::new(format!("{setting} is {text:?}, which is not a duration"), help)
    })
}

/// Makes types that are parsed from a text and printed as such a [`Value`].
#[macro_export]
macro_rules! value_from_str {
    ($($type:ty),*) => {$(
        impl $crate::values::Value for $type {
            fn from_text(
                text: &str,
                setting: &$crate::setting::Setting,
                _: &$crate::reader::Reader,
            ) -> Result<$type, $crate::findings::Problem> {
                text.parse().map_err(|error| $crate::values::rejected(setting, &error))
            }

            fn shown(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )*};
}
value_from_str!(bool, u32, usize, String, ByteSize);

/// The problem with a text that could not be parsed.
pub fn rejected(setting: &Setting, error: &dyn Display) -> Problem {
    let help = match setting.fallback {
        Fallback::Default(default) => format!("for example \"{default}\""),
        _ => String::new(),
    };
    Problem::new(format!("{setting}: {error}"), help)
}

/// Whether this is the name or an address of this host itself. The name is `localhost`, which resolvers must not send elsewhere.
pub fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || is_loopback_address(host)
}

/// Whether this is an address of this host itself.
pub fn is_loopback_address(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}
