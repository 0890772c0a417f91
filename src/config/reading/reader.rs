//! Reads settings one by one. An invalid setting becomes a finding, and reading continues.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::config::Servers;
use crate::config::catalogue::{Postgres, SETTINGS};
use crate::config::findings::{Findings, Place, Problem};
use crate::config::properties::PropertyCheck;
use crate::config::reading::entries::Entries;
use crate::config::reading::values::{self, FromText};
use crate::config::secret::{Lookup, Secret, SecretSource};
use crate::config::setting::{Fallback, Setting};

pub(in crate::config) struct Reader {
    pub(in crate::config) entries: Entries,
    pub(in crate::config) findings: Findings,
    pub(in crate::config) lookup: Lookup,
    pub(in crate::config) file: Option<PathBuf>,
    /// Whether all of the file could be parsed. If not, it may contain settings that seem to be missing.
    pub(in crate::config) whole: bool,
    /// Files for other servers are not opened.
    pub(in crate::config) servers: Servers,
    pub(in crate::config) check: PropertyCheck,
}

const SHARED_HELP: &str = "chmod 600 the file or, if it belongs to root, chmod 640. In Kubernetes, set defaultMode: 0440 for \
                           the volume";

/// The mode of a file that others than its owner can access, with libpq's exception: the group may read a file of root.
pub(in crate::config) fn shared_mode(path: &Path) -> Option<u32> {
    let file = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
    let mode = file.mode() & 0o777;
    let forbidden = if file.uid() == 0 { 0o037 } else { 0o077 };
    (mode & forbidden != 0).then_some(mode)
}

/// As libpq, refuses a private key that others can read.
pub(in crate::config) fn check_key(setting: &str, path: &Path) -> Result<(), Problem> {
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
    pub(in crate::config) fn place(&self, setting: &Setting) -> Option<Place> {
        self.entries.get(setting).map(|entry| entry.place.clone())
    }

    /// The place of a finding about several settings.
    pub(in crate::config) fn default_place(&self) -> Place {
        self.file.clone().map_or(Place::Nowhere, Place::File)
    }

    pub(in crate::config) fn warn(&mut self, setting: &Setting, problem: Problem) {
        let place = self.place(setting).unwrap_or_else(|| self.default_place());
        self.findings.warn(&place, problem);
    }

    pub(in crate::config) fn error(&mut self, setting: &Setting, problem: Problem) {
        let place = self.place(setting).unwrap_or_else(|| self.default_place());
        self.findings.error(&place, problem);
    }

    /// Warns about a file that contains a secret and that others can read, such as a mounted Kubernetes secret.
    pub(in crate::config) fn warn_if_shared(&mut self, setting: &str, place: &Place, path: &Path) {
        if let Some(mode) = shared_mode(path) {
            let message = format!("{setting}: other users can read {} (mode {mode:04o})", path.display());
            self.findings.warn(place, Problem::new(message, SHARED_HELP));
        }
    }

    /// The same for a secret in the configuration file itself.
    pub(in crate::config) fn warn_if_inline(&mut self, name: &str, place: &Place) {
        let Some(mode) = self.file.as_deref().and_then(shared_mode) else { return };
        if matches!(place, Place::Line { .. }) {
            let message = format!("{name} is a secret, and other users can read this file (mode {mode:04o})");
            let help = format!("write the secret to a file of its own, or: {SHARED_HELP}");
            self.findings.warn(place, Problem::new(message, help));
        }
    }

    /// The value of the setting, or its default. An invalid value becomes a finding, and reading continues with the default.
    pub(in crate::config) fn take<T: FromText>(
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
    pub(in crate::config) fn secret<T: FromText + From<SecretSource>>(
        &mut self,
        setting: &Setting,
        file: &Setting,
    ) -> Option<T> {
        if let (Some(place), true) = (self.place(file), self.place(setting).is_some()) {
            let message = format!("both {} and {} are set in [{}]", setting.key, file.key, setting.section);
            self.findings.error(&place, Problem::new(message, "remove one of them"));
        }
        let mut source: Option<SecretSource> = self.take(setting, FromText::from_text)?;
        // A url is a secret only if it contains a password.
        if let (Some(_), Some(place), true) = (&source, self.place(setting), *setting != Postgres::url) {
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

    /// Whether to open the files of this section.
    fn opens_files_of(&self, section: &str) -> bool {
        self.servers == Servers::Both || section == Postgres::url.section
    }

    /// The source of a secret in a file, and the secret if the file is opened.
    pub(in crate::config) fn secret_file(
        &self,
        section: &str,
        setting: &str,
        name: &str,
    ) -> Result<(SecretSource, Option<Secret>), Problem> {
        let path = self.lookup.resolve(name);
        let source = SecretSource::File(path.clone());
        if !self.opens_files_of(section) {
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
    pub(in crate::config) fn readable_file(
        &self,
        section: &str,
        setting: &str,
        name: &str,
    ) -> Result<PathBuf, Problem> {
        let path = self.lookup.resolve(name);
        if self.opens_files_of(section)
            && let Err(error) = std::fs::File::open(&path)
        {
            return Err(self.unreadable(setting, &path, name, &error));
        }
        Ok(path)
    }

    fn unreadable(&self, setting: &str, path: &Path, name: &str, error: &io::Error) -> Problem {
        let denied = error.kind() == io::ErrorKind::PermissionDenied;
        let help = if denied && setting.starts_with("[postgres]") {
            format!(
                "make it readable for the user that runs the relay. For other commands, use sudo, or set {} to a \
                 URL with your own role",
                Postgres::url.variable()
            )
        } else if denied {
            "make it readable for the user that runs the relay".to_owned()
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
    pub(in crate::config) fn report_missing(&mut self) {
        let place = self.default_place();
        for setting in SETTINGS {
            let Fallback::Required(example) = setting.fallback else { continue };
            let twin = setting.twin();
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
