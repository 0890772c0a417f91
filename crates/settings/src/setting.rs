//! The definition of a setting, and the macro that generates the types of the configuration.

use std::fmt;
use std::time::Duration;

use crate::reader::Reader;

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Text,
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
    Table(&'static Table),
}

/// A table whose keys the user chooses.
#[derive(Debug)]
pub struct Table {
    /// Its section in the file.
    pub section: &'static str,
    /// An inline table, for messages.
    pub example: &'static str,
    /// Its lines in the example of the configuration.
    pub lines: &'static str,
    /// The key for the end of the name of an environment variable.
    pub key_of_variable: fn(&str) -> String,
    /// What the known keys are.
    pub what: &'static str,
    /// Whether this key is known in advance.
    pub is_known: fn(&str) -> bool,
    /// Whether the value of this key may be printed.
    pub is_harmless: fn(&str) -> bool,
}

impl Kind {
    pub const fn is_table(self) -> bool {
        matches!(self, Kind::Table(_))
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
    Restart,
}

#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The table in the file.
    pub section: &'static str,
    pub key: &'static str,
    pub kind: Kind,
    pub fallback: Fallback,
    /// Whether the value must never be printed. A secret has a twin whose key ends in `_file`.
    pub secret: bool,
    pub effect: Effect,
    /// The description, in a line or two.
    pub help: &'static str,
}

pub const VARIABLE_PREFIX: &str = "OUTBOX_RELAY__";

impl Setting {
    pub fn variable(&self) -> String {
        let section = self.section.replace('.', "__");
        format!("{VARIABLE_PREFIX}{section}__{}", self.key).to_uppercase()
    }
}

/// `[relay] batch_size`
impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "[{}] {}", self.section, self.key)
    }
}

/// `password` for `password_file`, and vice versa.
pub fn twin(key: &str) -> String {
    key.strip_suffix("_file").map_or_else(|| format!("{key}_file"), str::to_owned)
}

#[derive(Debug)]
pub struct Catalogue {
    /// In the order of the file.
    pub sections: &'static [Group],
}

#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// The name in the file.
    pub name: &'static str,
    pub about: &'static str,
    /// In the order of the file.
    pub settings: &'static [Setting],
}

impl Group {
    pub const fn of<S: Section>() -> Group {
        Group { name: S::NAME, about: S::ABOUT, settings: S::SETTINGS }
    }
}

impl Catalogue {
    /// In the order of the file.
    pub fn settings(&self) -> impl Iterator<Item = &'static Setting> + Clone + use<> {
        self.sections.iter().flat_map(|group| group.settings)
    }

    pub(crate) fn section(&self, name: &str) -> Option<&'static Group> {
        self.sections.iter().find(|group| group.name == name)
    }

    pub fn find(&self, section: &str, key: &str) -> Option<&'static Setting> {
        self.settings().find(|setting| setting.section == section && setting.key == key)
    }

    /// The other setting for the same secret: `password` and `password_file` are twins.
    pub fn twin(&self, setting: &Setting) -> Option<&'static Setting> {
        let twin = self.find(setting.section, &twin(setting.key))?;
        (setting.secret || twin.secret).then_some(twin)
    }

    pub(crate) fn tables(&self) -> impl Iterator<Item = (&'static Setting, &'static Table)> + use<> {
        self.settings().filter_map(|setting| match setting.kind {
            Kind::Table(table) => Some((setting, table)),
            _ => None,
        })
    }
}

/// A section of the configuration file, as [`section!`](crate::section) defines it.
pub trait Section: Sized {
    const NAME: &'static str;
    const ABOUT: &'static str;
    const SETTINGS: &'static [Setting];

    /// Reads each setting and reports problems. `None` if a setting has no value.
    fn read(reader: &mut Reader) -> Option<Self>;

    /// These settings, with those of `new` that need no restart.
    fn reloaded(&self, new: &Self) -> Self;

    /// Each setting except tables. Twins share an entry.
    fn compared(&self, new: &Self) -> Vec<Compared>;
}

#[derive(Debug)]
pub struct Compared {
    pub setting: &'static Setting,
    /// The value without secrets; `None` if it is not set.
    pub shown: Option<String>,
    pub differs: bool,
}

/// Defines a section of the configuration: a struct that implements [`Section`], with one field per setting.
/// `Relay::batch_size` is the [`Setting`] of the field `batch_size`.
///
/// A setting is `key: type, kind, fallback, effect, help;`. `key / key_file(example, help)` is a secret and its twin.
/// `type => function` replaces [`Value::from_text`](crate::reader::Value::from_text). `[key] table, help;` is a table. `and`
/// adds other fields.
#[macro_export]
macro_rules! section {
    (
        $section:literal $name:ident, $about:literal {
            $(
                $key:ident $(/ $file:ident($file_example:literal, $file_help:literal))?: $type:ty $(=> $parse:path)?,
                $kind:expr, $fallback:expr, $effect:ident, $help:literal;
            )*
            $([$table:ident] $described:expr, $table_help:literal;)*
        } $(and { $($(#[$doc:meta])* $vis:vis $field:ident: $field_type:ty),* $(,)? })?
    ) => {
        #[doc = concat!("`[", $section, "]`: ", $about)]
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $(#[doc = $help] pub $key: $type,)*
            $($($(#[$doc])* $vis $field: $field_type,)*)?
        }

        #[allow(non_upper_case_globals)] // named like the fields
        impl $name {
            $(
                pub const $key: $crate::setting::Setting = $crate::setting::Setting {
                    section: $section,
                    key: stringify!($key),
                    kind: $kind,
                    fallback: $fallback,
                    secret: false $(|| !stringify!($file).is_empty())?,
                    effect: $crate::setting::Effect::$effect,
                    help: $help,
                };
                $(
                    pub const $file: $crate::setting::Setting = $crate::setting::Setting {
                        key: stringify!($file),
                        kind: $crate::setting::Kind::File,
                        fallback: $crate::setting::Fallback::Unset($file_example),
                        secret: false,
                        help: $file_help,
                        ..$name::$key
                    };
                )?
            )*
            $(
                pub const $table: $crate::setting::Setting = $crate::setting::Setting {
                    section: $section,
                    key: stringify!($table),
                    kind: $crate::setting::Kind::Table(&$described),
                    fallback: $crate::setting::Fallback::Unset(""),
                    secret: false,
                    effect: $crate::setting::Effect::Restart,
                    help: $table_help,
                };
            )*
        }

        impl $crate::setting::Section for $name {
            const NAME: &'static str = $section;
            const ABOUT: &'static str = $about;
            const SETTINGS: &'static [$crate::setting::Setting] =
                &[$($name::$key, $($name::$file,)?)* $($name::$table,)*];

            fn read(reader: &mut $crate::reader::Reader) -> Option<$name> {
                $(let $key = $crate::read_setting!(reader, $name, $key $(/ $file)? $(=> $parse)?);)*
                Some($name {
                    $($key: $key?,)*
                    $($($field: std::default::Default::default(),)*)?
                })
            }

            fn reloaded(&self, new: &$name) -> $name {
                let mut reloaded = self.clone();
                $(if $name::$key.effect != $crate::setting::Effect::Restart {
                    reloaded.$key.clone_from(&new.$key);
                })*
                reloaded
            }

            fn compared(&self, new: &$name) -> Vec<$crate::setting::Compared> {
                vec![$($crate::setting::Compared {
                    setting: &$name::$key,
                    shown: $crate::reader::Value::shown(&self.$key),
                    differs: self.$key != new.$key,
                }),*]
            }
        }
    };
}

/// Reads a setting, for [`section!`](crate::section).
#[doc(hidden)]
#[macro_export]
macro_rules! read_setting {
    ($reader:ident, $name:ident, $key:ident) => {
        $reader.take(&$name::$key, $crate::reader::Value::from_text)
    };
    ($reader:ident, $name:ident, $key:ident => $parse:path) => {
        $reader.take(&$name::$key, $parse)
    };
    ($reader:ident, $name:ident, $key:ident / $file:ident) => {
        $reader.secret(&$name::$key, &$name::$file)
    };
}

/// Defines an enum whose variants are words in the configuration.
#[macro_export]
macro_rules! choice {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$doc])* $variant),+ }

        impl $name {
            pub const ALL: [$name; [$($word),+].len()] = [$($name::$variant),+];
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }

            pub fn named(word: &str) -> Option<$name> {
                match word { $($word => Some($name::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(self.name())
            }
        }

        impl $crate::reader::Value for $name {
            fn from_text(
                text: &str,
                setting: &$crate::setting::Setting,
                _: &$crate::reader::Reader,
            ) -> Result<$name, $crate::findings::Problem> {
                let unknown = || $crate::reader::unknown_word(setting, $name::WORDS, text);
                $name::named(text).ok_or_else(unknown)
            }

            fn shown(&self) -> Option<String> {
                Some(self.name().to_owned())
            }
        }
    };
}
