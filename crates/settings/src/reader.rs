//! Reads settings one by one: checks the type and range of a value, and converts it. An invalid setting becomes a finding, and
//! reading continues.

use crate::file::{Entries, nearest};
use crate::findings::{Findings, Place, Problem};
use crate::secret::{HIDDEN, Lookup, Secret, SecretSource};
use crate::setting::{Catalogue, Fallback, Kind, Setting};
use humantime::format_duration;
use pg_outbox::topic::TopicTemplate;
use std::fmt::{self, Display};
use std::fs::Metadata;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// A url is a secret only if it contains a password.
const URL: &str = "url";

pub struct Reader {
    pub entries: Entries,
    pub findings: Findings,
    pub lookup: Lookup,
    /// Whether all of the file could be parsed. If not, it may contain settings that seem to be missing.
    pub whole: bool,
    pub catalogue: &'static Catalogue,
    /// Whether to open the files that a section names.
    pub opens_files_of: fn(&str) -> bool,
    /// What to do if a file that a section names may not be read.
    pub help_with_denied: fn(&str) -> String,
}

const SHARED_HELP: &str = "chmod 600 the file or, if it belongs to root, chmod 640. In Kubernetes, set defaultMode: 0440 for \
                           the volume";

/// The mode of a file that others than its owner can access, with libpq's exception: the group may read a file of root.
fn shared_mode(path: &Path) -> Option<u32> {
    let file = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
    let mode = file.mode() & 0o777;
    let forbidden = if file.uid() == 0 { 0o037 } else { 0o077 };
    (mode & forbidden != 0).then_some(mode)
}

/// As libpq, refuses a private key that others can read.
pub fn check_key(setting: &str, path: &Path) -> Result<(), Problem> {
    match shared_mode(path) {
        None => Ok(()),
        Some(mode) => {
            let message = format!(
                "{setting}: other users can read the private key {} (mode {mode:04o})",
                path.display()
            );
            Err(Problem::new(message, SHARED_HELP))
        }
    }
}

impl Reader {
    pub fn place(&self, setting: &Setting) -> Option<Place> {
        self.entries.get(setting).map(|entry| entry.place.clone())
    }

    /// The place of a finding about several settings.
    pub fn default_place(&self) -> Place {
        self.lookup.config_file.clone().map_or(Place::Nowhere, Place::File)
    }

    pub fn warn(&mut self, setting: &Setting, problem: Problem) {
        let place = self.place(setting).unwrap_or_else(|| self.default_place());
        self.findings.warn(&place, problem);
    }

    pub fn error(&mut self, setting: &Setting, problem: Problem) {
        let place = self.place(setting).unwrap_or_else(|| self.default_place());
        self.findings.error(&place, problem);
    }

    /// Warns about a secret in a file that others can read, such as a mounted Kubernetes secret.
    pub fn warn_if_exposed(&mut self, name: &str, place: &Place, source: &SecretSource) {
        let SecretSource::File(path) = source else { return self.warn_if_inline(name, place) };
        if let Some(mode) = shared_mode(path) {
            let message = format!("{name}: other users can read {} (mode {mode:04o})", path.display());
            self.findings.warn(place, Problem::new(message, SHARED_HELP));
        }
    }

    /// The same for a secret in the configuration file itself.
    pub fn warn_if_inline(&mut self, name: &str, place: &Place) {
        let Some(mode) = self.lookup.config_file.as_deref().and_then(shared_mode) else { return };
        if matches!(place, Place::Line { .. }) {
            let message = format!("{name} is a secret, and other users can read this file (mode {mode:04o})");
            let help = format!("write the secret to a file of its own, or: {SHARED_HELP}");
            self.findings.warn(place, Problem::new(message, help));
        }
    }

    /// The value of the setting, or its default. An invalid value becomes a finding, and reading continues with the default.
    pub fn take<T: Value>(
        &mut self,
        setting: &Setting,
        read: fn(&str, &Setting, &Reader) -> Result<T, Problem>,
    ) -> Option<T> {
        if let Some(entry) = self.entries.get(setting) {
            match parse(setting, &entry.raw).and_then(|text| read(&text, setting, self)) {
                Ok(value) => return Some(value),
                Err(problem) => self.findings.error(&entry.place.clone(), problem),
            }
        }
        let Fallback::Default(text) = setting.fallback else { return T::unset() };
        read(text, setting, self).map_err(|problem| self.findings.error(&Place::Nowhere, problem)).ok()
    }

    /// A secret or its `_file` twin. The file is read once, to check that it is readable.
    pub fn secret<T: Value + From<SecretSource>>(&mut self, setting: &Setting, file: &Setting) -> Option<T> {
        if let (Some(place), true) = (self.place(file), self.place(setting).is_some()) {
            let message = format!("both {} and {} are set in [{}]", setting.key, file.key, setting.section);
            self.findings.error(&place, Problem::new(message, "remove one of them"));
        }
        let mut given = setting;
        let mut source: Option<SecretSource> = self.take(setting, Value::from_text)?;
        if source.is_none() {
            given = file;
            source = self.take(file, |name, file, reader| {
                reader.secret_file(file.section, &file.to_string(), name).map(|(source, _)| Some(source))
            })?;
        } else if let (Some(SecretSource::Inline(secret)), Some(place)) = (&source, self.place(setting))
            && secret.expose().is_empty()
            && setting.key != URL
            && (self.opens_files_of)(setting.section)
        {
            // A deployment passes an unset variable as an empty one, which would replace the secret of the file.
            self.findings
                .error(&place, Problem::new(format!("{setting} is empty"), "remove it, or set the secret"));
        }
        if let (Some(source), Some(place), true) = (&source, self.place(given), given.key != URL) {
            self.warn_if_exposed(&given.to_string(), &place, source);
        }
        source.map_or_else(T::unset, |source| Some(source.into()))
    }

    /// The source of a secret in a file, and the secret if the file is opened.
    pub fn secret_file(
        &self,
        section: &str,
        setting: &str,
        name: &str,
    ) -> Result<(SecretSource, Option<Secret>), Problem> {
        let path = self.lookup.resolve(name);
        let source = SecretSource::File(path.clone());
        if !(self.opens_files_of)(section) {
            return Ok((source, None));
        }
        let secret = source.read().map_err(|error| self.unreadable(setting, &path, name, &error))?;
        if secret.expose().is_empty() {
            let message = format!("{setting}: {} is empty", path.display());
            return Err(Problem::new(message, self.lookup.help_with_empty(&path)));
        }
        Ok((source, Some(secret)))
    }

    /// The path of a file that is opened later.
    pub fn readable_file(&self, section: &str, setting: &str, name: &str) -> Result<PathBuf, Problem> {
        let path = self.lookup.resolve(name);
        if (self.opens_files_of)(section)
            && let Err(error) = std::fs::File::open(&path)
        {
            return Err(self.unreadable(setting, &path, name, &error));
        }
        Ok(path)
    }

    fn unreadable(&self, setting: &str, path: &Path, name: &str, error: &io::Error) -> Problem {
        let help = if error.kind() == io::ErrorKind::PermissionDenied {
            (self.help_with_denied)(setting)
        } else if Path::new(name).is_absolute() {
            "correct the name, or create the file".to_owned()
        } else {
            self.lookup.help_with_absent()
        };
        Problem::new(format!("{setting}: cannot read {}: {error}", path.display()), help)
    }

    /// Reports each required setting that is not set.
    pub fn report_missing(&mut self) {
        let place = self.default_place();
        for setting in self.catalogue.settings() {
            let Fallback::Required(example) = setting.fallback else { continue };
            let twin = self.catalogue.twin(setting);
            if !self.whole || self.place(setting).or_else(|| self.place(twin?)).is_some() {
                continue;
            }
            let other = twin.map(|twin| format!(" or {}", twin.key)).unwrap_or_default();
            let help = match place {
                Place::Nowhere => format!("pass a file with --config, or set {}", setting.variable()),
                _ => format!(
                    "set it, for example {} = \"{example}\", or set {}",
                    setting.key,
                    setting.variable()
                ),
            };
            self.findings.error(&place, Problem::new(format!("{setting}{other} is missing"), help));
        }
    }
}

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
        (Kind::Count(..), Raw::Variable(text)) => text.trim().to_owned(),
        (_, Raw::Variable(text)) => text.clone(),
        (Kind::Count(..) | Kind::Flag | Kind::Command, Raw::String(_)) => return Err(wrong()),
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
        Kind::Text | Kind::File => {}
        Kind::Flag => _ = text.parse::<bool>().map_err(|_| wrong())?,
        Kind::Choice(words) if words.contains(&&*text) => {}
        Kind::Choice(words) => return Err(unknown_word(setting, words, &text)),
        Kind::Command => _ = words(&text).ok_or_else(wrong)?,
        Kind::Count(min, max) => {
            let number: i128 = text.parse().map_err(|_| wrong())?;
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

/// The strings of an array in TOML, as an environment variable contains it.
pub fn words(text: &str) -> Option<Vec<String>> {
    text.trim().parse::<toml::Value>().ok()?.try_into().ok()
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

impl Value for SecretSource {
    fn from_text(text: &str, _: &Setting, _: &Reader) -> Result<SecretSource, Problem> {
        Ok(SecretSource::Inline(Secret::new(text)))
    }

    fn shown(&self) -> Option<String> {
        let hidden = match self {
            SecretSource::Inline(_) => HIDDEN,
            SecretSource::File(_) => "hidden, from a file",
        };
        Some(hidden.to_owned())
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
        impl $crate::reader::Value for $type {
            fn from_text(
                text: &str,
                setting: &$crate::setting::Setting,
                _: &$crate::reader::Reader,
            ) -> Result<$type, $crate::findings::Problem> {
                text.parse().map_err(|error| $crate::reader::rejected(setting, &error))
            }

            fn shown(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )*};
}
value_from_str!(bool, u32, usize, String, ByteSize, TopicTemplate);

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

pub fn is_loopback_address(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// A number of bytes, written like `8MiB`, `512KiB` or `65536`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(u64);

const UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

impl ByteSize {
    pub const fn bytes(bytes: u64) -> ByteSize {
        ByteSize(bytes)
    }

    pub const fn as_u64(self) -> u64 {
        self.0
    }

    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a size such as \"8MiB\", \"512KiB\" or 65536")]
pub struct InvalidSize;

impl FromStr for ByteSize {
    type Err = InvalidSize;

    fn from_str(text: &str) -> Result<ByteSize, InvalidSize> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = (&text[..digits], text[digits..].trim_start());
        let factor = match unit {
            "" => 1,
            unit => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or(InvalidSize)?.1,
        };
        let number: u64 = number.parse().map_err(|_| InvalidSize)?;
        number.checked_mul(factor).map(ByteSize).ok_or(InvalidSize)
    }
}

impl Display for ByteSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary =
            UNITS.iter().take(3).find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        match binary {
            Some((unit, factor)) => write!(formatter, "{}{unit}", self.0 / factor),
            None => write!(formatter, "{}B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_survives_as_text() {
        let array_of = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        for list in [&["a"][..], &["a b", "c\"d'e\\f\n\u{e9}", ""], &[]] {
            let list = array_of(list);
            assert_eq!(words(&toml::Value::from(list.clone()).to_string()), Some(list));
        }
        for text in ["", "a b", "\"a\"", "[1]", "[\"a\", 1]", "[\"a\"]\nother = 1", "[\"a\""] {
            assert_eq!(words(text), None, "{text:?}");
        }
    }
}
