//! The definition of a setting, and the macro that generates the types of the configuration.

use std::fmt;
use std::time::Duration;

use super::Config;
use super::catalogue::SETTINGS;
use super::reading::reader::Reader;

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Any text.
    Text,
    /// The name of a file.
    File,
    /// `true` or `false`.
    Flag,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A whole number in this range.
    Count(u64, u64),
    /// A size in bytes in this range, such as `"8MiB"`.
    Size(u64, u64),
    /// A duration in this range, such as `"50ms"`.
    Span(Duration, Duration),
    /// A program and its arguments.
    Command,
    /// A table of librdkafka properties.
    Properties,
    /// A table of headers.
    Headers,
    /// A table of the names of columns.
    Columns,
}

impl Kind {
    /// Whether the setting is a table of its own, whose keys the user chooses.
    pub const fn is_table(self) -> bool {
        matches!(self, Kind::Properties | Kind::Headers | Kind::Columns)
    }
}

/// The value of a setting that is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// This value, written as in the environment.
    Default(&'static str),
    /// None. The text is an example.
    Unset(&'static str),
    /// The setting or its `_file` twin is required. The text is an example.
    Required(&'static str),
}

/// When a change of a setting takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// With the next batch, round or log line.
    Now,
    /// With the next connection to PostgreSQL. Open connections stay.
    NextConnection,
    /// After a restart.
    Restart,
}

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// The table in the file.
    pub section: &'static str,
    /// The key.
    pub key: &'static str,
    /// The kind of its value.
    pub kind: Kind,
    /// The value if it is not set.
    pub fallback: Fallback,
    /// Whether the value must never be printed. A secret has a twin whose key ends in `_file`.
    pub secret: bool,
    /// When a change takes effect.
    pub effect: Effect,
    /// The description, in a line or two.
    pub help: &'static str,
}

/// The prefix of the environment variables that override settings.
pub const VARIABLE_PREFIX: &str = "OUTBOX_RELAY__";

impl Setting {
    /// The environment variable that overrides this setting.
    pub fn variable(&self) -> String {
        let section = self.section.replace('.', "__");
        format!("{VARIABLE_PREFIX}{section}__{}", self.key).to_uppercase()
    }

    /// The other setting for the same secret: `password` and `password_file` are twins.
    pub fn twin(&self) -> Option<&'static Setting> {
        let twin = find(self.section, &twin(self.key))?;
        (self.secret || twin.secret).then_some(twin)
    }
}

/// `[relay] batch_size`
impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "[{}] {}", self.section, self.key)
    }
}

/// `password` for `password_file`, and vice versa.
pub(super) fn twin(key: &str) -> String {
    key.strip_suffix("_file").map_or_else(|| format!("{key}_file"), str::to_owned)
}

/// The setting with this name.
pub fn find(section: &str, key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.section == section && setting.key == key)
}

/// Section, key and effect of a setting, and whether it differs between two configurations.
pub(super) type Compared = (&'static str, &'static str, Effect, fn(&Config, &Config) -> bool);

/// Section and key of a setting, and how it is shown. `None` if it is not set.
pub(super) type Readable = (&'static str, &'static str, fn(&Config) -> Option<String>);

/// A table of the configuration file.
pub(super) trait Section: Sized {
    /// Reads each setting and reports problems. `None` if a setting has no value.
    fn read(reader: &mut Reader) -> Option<Self>;

    /// These settings, with those of `new` that need no restart.
    fn reloaded(&self, new: &Self) -> Self;
}

/// Defines the sections of the configuration. Each one becomes a struct that implements [`Section`], with one field per
/// setting, and entries in [`SETTINGS`], [`SECTIONS`](super::catalogue::SECTIONS),
/// [`COMPARED`](super::catalogue::COMPARED) and [`READABLE`](super::catalogue::READABLE). `Relay::batch_size` is the
/// [`Setting`] of the field `batch_size`.
///
/// A setting is `key: type, kind, fallback, effect, help;`. `key / key_file(example, help)` is a secret and its twin.
/// `type => function` replaces [`FromText`](super::reading::values::FromText). `[key] kind, help;` is a table. `and` adds
/// other fields.
macro_rules! settings {
    ($(
        section $section:literal $name:ident at $at:expr, $about:literal {
            $(
                $key:ident $(/ $file:ident($file_example:literal, $file_help:literal))?: $type:ty $(=> $parse:path)?,
                $kind:expr, $fallback:expr, $effect:ident, $help:literal;
            )*
            $([$table:ident] $table_kind:expr, $table_help:literal;)*
        } $(and { $($(#[$doc:meta])* $vis:vis $field:ident: $field_type:ty),* $(,)? })?
    )*) => {
        $(
            #[doc = concat!("`[", $section, "]`: ", $about)]
            #[derive(Clone, Debug, PartialEq, Eq)]
            pub struct $name {
                $(#[doc = $help] pub $key: $type,)*
                $($($(#[$doc])* $vis $field: $field_type,)*)?
            }

            #[allow(non_upper_case_globals)] // named like the fields
            impl $name {
                $(
                    pub(super) const $key: Setting = Setting {
                        section: $section,
                        key: stringify!($key),
                        kind: $kind,
                        fallback: $fallback,
                        secret: false $(|| !stringify!($file).is_empty())?,
                        effect: Effect::$effect,
                        help: $help,
                    };
                    $(pub(super) const $file: Setting = Setting {
                        key: stringify!($file),
                        kind: Kind::File,
                        fallback: Fallback::Unset($file_example),
                        secret: false,
                        help: $file_help,
                        ..$name::$key
                    };)?
                )*
                $(pub(super) const $table: Setting = Setting {
                    section: $section,
                    key: stringify!($table),
                    kind: $table_kind,
                    fallback: Fallback::Unset(""),
                    secret: false,
                    effect: Effect::Restart,
                    help: $table_help,
                };)*

            }

            impl Section for $name {
                fn read(reader: &mut Reader) -> Option<$name> {
                    $(let $key = read_setting!(reader, $name, $key $(/ $file)? $(=> $parse)?);)*
                    Some($name {
                        $($key: $key?,)*
                        $($($field: std::default::Default::default(),)*)?
                    })
                }

                fn reloaded(&self, new: &$name) -> $name {
                    let mut reloaded = self.clone();
                    $(if $name::$key.effect != Effect::Restart {
                        reloaded.$key.clone_from(&new.$key);
                    })*
                    reloaded
                }
            }
        )*

        /// The sections with their descriptions, in the order of the file.
        pub const SECTIONS: &[(&str, &str)] = &[$(($section, $about)),*];

        /// All settings, in the order of the file.
        pub const SETTINGS: &[Setting] = &[$($($name::$key, $($name::$file,)?)* $($name::$table,)*)*];

        /// Every setting except tables. Twins share an entry.
        pub(super) const COMPARED: &[Compared] = &[$($(
            ($section, stringify!($key), Effect::$effect, |a, b| {
                let section: fn(&Config) -> Option<&$name> = $at;
                section(a).map(|section| &section.$key) != section(b).map(|section| &section.$key)
            }),
        )*)*];

        /// Every setting except tables, as [`Config::shown`](super::Config::shown) shows it. Twins share an entry.
        pub(super) const READABLE: &[Readable] = &[$($(
            ($section, stringify!($key), |config| {
                let section: fn(&Config) -> Option<&$name> = $at;
                section(config)?.$key.shown()
            }),
        )*)*];
    };
}
pub(super) use settings;

/// Reads a setting, for [`settings`].
macro_rules! read_setting {
    ($reader:ident, $name:ident, $key:ident) => {
        $reader.take(&$name::$key, FromText::from_text)
    };
    ($reader:ident, $name:ident, $key:ident => $parse:path) => {
        $reader.take(&$name::$key, $parse)
    };
    ($reader:ident, $name:ident, $key:ident / $file:ident) => {
        $reader.secret(&$name::$key, &$name::$file)
    };
}
pub(super) use read_setting;

/// Defines an enum whose variants are words in the configuration.
macro_rules! choice {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$doc])* $variant),+ }

        impl $name {
            pub(crate) const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word in the configuration.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }

            pub(crate) fn named(word: &str) -> Option<$name> {
                match word { $($word => Some($name::$variant),)+ _ => None }
            }
        }

        impl FromText for $name {
            fn from_text(text: &str, setting: &Setting, _: &Reader) -> Result<$name, Problem> {
                $name::named(text).ok_or_else(|| unknown_word(setting, $name::WORDS, text))
            }
        }
    };
}
pub(super) use choice;
