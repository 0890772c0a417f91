//! Takes settings one by one, and notes what is wrong with each instead of stopping.

use std::path::PathBuf;
use std::time::Duration;

use super::Servers;
use super::catalogue::{self, Fallback, Kind, SETTINGS, Setting};
use super::entries::Entries;
use super::findings::{Findings, Place, Problem};
use super::properties::PropertyCheck;
use super::secret::{Lookup, Secret, SecretSource};
use super::size::ByteSize;
use super::values::{self, Raw, Value};

pub(super) struct Reader {
    pub(super) entries: Entries,
    pub(super) findings: Findings,
    pub(super) lookup: Lookup,
    pub(super) file: Option<PathBuf>,
    /// Whether the file could be read to its end; if not, what seems to be missing may stand in it.
    pub(super) whole: bool,
    /// Files for others are not opened.
    pub(super) servers: Servers,
    pub(super) check: PropertyCheck,
}

/// Names in the code must be names of the catalogue.
const IN_CATALOGUE: &str = "the setting and its kind stand in the catalogue";

impl Reader {
    /// Where the setting was given; `None` when the default holds.
    pub(super) fn place(&self, section: &'static str, key: &'static str) -> Option<Place> {
        self.entries.settings.get(&(section, key)).map(|entry| entry.place.clone())
    }

    /// The place of what concerns several settings.
    pub(super) fn default_place(&self) -> Place {
        self.file.clone().map_or(Place::Nowhere, Place::File)
    }

    /// The value that was given, or else the default. A faulty value is noted, and the default taken to go on.
    fn value(&mut self, section: &'static str, key: &'static str) -> Option<Value> {
        let setting = catalogue::find(section, key).expect(IN_CATALOGUE);
        if let Some(entry) = self.entries.settings.get(&(section, key)) {
            match values::parse(setting, &entry.raw) {
                Ok(value) => return Some(value),
                Err(problem) => self.findings.error(&entry.place, problem),
            }
        }
        default(setting)
    }

    pub(super) fn text(&mut self, section: &'static str, key: &'static str) -> Option<String> {
        self.value(section, key).map(|value| match value {
            Value::Text(text) => text,
            _ => unreachable!("{IN_CATALOGUE}"),
        })
    }

    pub(super) fn words(&mut self, section: &'static str, key: &'static str) -> Vec<String> {
        let Some(Value::Words(words)) = self.value(section, key) else { unreachable!("{IN_CATALOGUE}") };
        words
    }

    pub(super) fn flag(&mut self, section: &'static str, key: &'static str) -> bool {
        let Some(Value::Flag(flag)) = self.value(section, key) else { unreachable!("{IN_CATALOGUE}") };
        flag
    }

    pub(super) fn count(&mut self, section: &'static str, key: &'static str) -> usize {
        let Some(Value::Count(count)) = self.value(section, key) else { unreachable!("{IN_CATALOGUE}") };
        usize::try_from(count).expect("the ranges of the catalogue fit into memory")
    }

    pub(super) fn size(&mut self, section: &'static str, key: &'static str) -> ByteSize {
        let Some(Value::Size(size)) = self.value(section, key) else { unreachable!("{IN_CATALOGUE}") };
        size
    }

    pub(super) fn span(&mut self, section: &'static str, key: &'static str) -> Duration {
        let Some(Value::Span(span)) = self.value(section, key) else { unreachable!("{IN_CATALOGUE}") };
        span
    }

    /// A text that is parsed further; what is wrong with it is noted, and the default taken to go on.
    pub(super) fn parsed<T>(
        &mut self,
        section: &'static str,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, Problem>,
    ) -> T {
        let text = self.text(section, key).expect(IN_CATALOGUE);
        parse(&text).unwrap_or_else(|problem| {
            let place = self.place(section, key).unwrap_or_else(|| self.default_place());
            self.findings.error(&place, problem);
            let Some(Value::Text(text)) = catalogue::find(section, key).and_then(default) else {
                unreachable!("{IN_CATALOGUE}")
            };
            parse(&text).unwrap_or_else(|_| unreachable!("a test parses all defaults"))
        })
    }

    /// A secret or its `_file` twin, read once to see that it can be read.
    pub(super) fn secret(
        &mut self,
        section: &'static str,
        key: &'static str,
    ) -> Option<(SecretSource, Secret, Place)> {
        let setting = catalogue::find(section, key).expect(IN_CATALOGUE);
        let twin = setting.twin().expect(IN_CATALOGUE);
        let file_place = self.place(section, twin.key);
        if let (Some(place), true) = (&file_place, self.place(section, key).is_some()) {
            let message = format!("both {key} and {} are given in [{section}]", twin.key);
            self.findings.error(place, Problem::new(message, "keep one of the two"));
        }
        if let (Some(text), Some(place)) = (self.text(section, key), self.place(section, key)) {
            return Some((SecretSource::Inline(Secret::new(&text)), Secret::new(text), place));
        }
        let (name, place) = (self.text(section, twin.key)?, file_place?);
        if !self.opens_files_of(section) {
            return Some((SecretSource::File(self.lookup.resolve(&name)), Secret::new(""), place));
        }
        match self.secret_file(&format!("[{section}] {}", twin.key), &name) {
            Ok((source, secret)) => Some((source, secret, place)),
            Err(problem) => {
                self.findings.error(&place, problem);
                None
            }
        }
    }

    /// Whether files that this section names are opened.
    pub(super) fn opens_files_of(&self, section: &str) -> bool {
        self.servers == Servers::Both || section == "postgres"
    }

    /// The secret in a file, and the source to read it from again.
    pub(super) fn secret_file(&self, setting: &str, name: &str) -> Result<(SecretSource, Secret), Problem> {
        let path = self.lookup.resolve(name);
        let source = SecretSource::File(path.clone());
        let secret = source.read().map_err(|error| self.unreadable(setting, &path, name, &error))?;
        if secret.expose().is_empty() {
            let message = format!("{setting}: {} is empty", path.display());
            return Err(Problem::new(message, self.lookup.help_with_empty(&path)));
        }
        Ok((source, secret))
    }

    /// The path of a file that the program, or a library of it, opens later.
    pub(super) fn readable_file(&self, setting: &str, name: &str) -> Result<PathBuf, Problem> {
        let path = self.lookup.resolve(name);
        match std::fs::File::open(&path) {
            Ok(_) => Ok(path),
            Err(error) => Err(self.unreadable(setting, &path, name, &error)),
        }
    }

    fn unreadable(
        &self,
        setting: &str,
        path: &std::path::Path,
        name: &str,
        error: &std::io::Error,
    ) -> Problem {
        let denied = error.kind() == std::io::ErrorKind::PermissionDenied;
        let help = if denied && setting.starts_with("[postgres]") {
            let url = catalogue::find("postgres", "url").expect(IN_CATALOGUE).variable();
            format!(
                "the user that runs the relay must be able to read it; for other commands, use sudo, or set {url} to a \
                 login of your own"
            )
        } else if std::path::Path::new(name).is_absolute() {
            "the user that runs the relay must be able to read it".to_owned()
        } else {
            format!("it is looked up in {}", self.lookup.places())
        };
        Problem::new(format!("{setting}: {} cannot be read: {error}", path.display()), help)
    }

    /// Notes each required setting that neither the file nor the environment gives.
    pub(super) fn note_missing(&mut self) {
        if !self.whole {
            return;
        }
        let place = self.default_place();
        for setting in SETTINGS {
            let Fallback::Required(example) = setting.fallback else { continue };
            let twin = setting.twin();
            let given = |key| self.entries.settings.contains_key(&(setting.section, key));
            if given(setting.key) || twin.is_some_and(|twin| given(twin.key)) {
                continue;
            }
            let other = twin.map(|twin| format!(" or {}", twin.key)).unwrap_or_default();
            let message = format!("[{}] {}{other} is missing", setting.section, setting.key);
            let help = format!("for instance {} = \"{example}\", or set {}", setting.key, setting.variable());
            self.findings.error(&place, Problem::new(message, help));
        }
    }
}

/// The value that holds when the setting is not given.
pub(super) fn default(setting: &Setting) -> Option<Value> {
    match (setting.fallback, setting.kind) {
        (Fallback::Default(text), _) => {
            let value = values::parse(setting, &Raw::Variable(text.to_owned()));
            Some(value.unwrap_or_else(|problem| unreachable!("a test parses all defaults: {problem:?}")))
        }
        (_, Kind::Words(_)) => Some(Value::Words(Vec::new())),
        _ => None,
    }
}
