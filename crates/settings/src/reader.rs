//! Reads settings one by one. An invalid setting becomes a finding, and reading continues.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::entries::Entries;
use crate::findings::{Findings, Place, Problem};
use crate::secret::{Lookup, Secret, SecretSource};
use crate::setting::{Catalogue, Fallback, Setting};
use crate::values::{self, Value};

/// A url is a secret only if it contains a password.
const URL: &str = "url";

/// Reads one configuration.
pub struct Reader {
    pub entries: Entries,
    pub findings: Findings,
    pub lookup: Lookup,
    pub file: Option<PathBuf>,
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
pub fn shared_mode(path: &Path) -> Option<u32> {
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
    /// The place of the setting; `None` if it is not set.
    pub fn place(&self, setting: &Setting) -> Option<Place> {
        self.entries.get(setting).map(|entry| entry.place.clone())
    }

    /// The place of a finding about several settings.
    pub fn default_place(&self) -> Place {
        self.file.clone().map_or(Place::Nowhere, Place::File)
    }

    pub fn warn(&mut self, setting: &Setting, problem: Problem) {
        let place = self.place(setting).unwrap_or_else(|| self.default_place());
        self.findings.warn(&place, problem);
    }

    pub fn error(&mut self, setting: &Setting, problem: Problem) {
        let place = self.place(setting).unwrap_or_else(|| self.default_place());
        self.findings.error(&place, problem);
    }

    /// Warns about a file that contains a secret and that others can read, such as a mounted Kubernetes secret.
    pub fn warn_if_shared(&mut self, setting: &str, place: &Place, path: &Path) {
        if let Some(mode) = shared_mode(path) {
            let message = format!("{setting}: other users can read {} (mode {mode:04o})", path.display());
            self.findings.warn(place, Problem::new(message, SHARED_HELP));
        }
    }

    /// The same for a secret in the configuration file itself.
    pub fn warn_if_inline(&mut self, name: &str, place: &Place) {
        let Some(mode) = self.file.as_deref().and_then(shared_mode) else { return };
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
            match values::parse(setting, &entry.raw).and_then(|text| read(&text, setting, self)) {
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
        let mut source: Option<SecretSource> = self.take(setting, Value::from_text)?;
        if let (Some(_), Some(place), true) = (&source, self.place(setting), setting.key != URL) {
            self.warn_if_inline(&setting.to_string(), &place);
        }
        if source.is_none() {
            source = self.take(file, |name, file, reader| {
                reader.secret_file(file.section, &file.to_string(), name).map(|(source, _)| Some(source))
            })?;
            if let (Some(SecretSource::File(path)), Some(place)) = (&source, self.place(file)) {
                self.warn_if_shared(&file.to_string(), &place, path);
            }
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
            format!(
                "correct the name, or create the file. Relative names are looked up in {}",
                self.lookup.places()
            )
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
