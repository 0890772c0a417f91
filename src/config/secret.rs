//! Secrets, and where they are read from.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::findings::Problem;
use super::reader::Reader;
use super::setting::Setting;
use super::values::FromText;

/// A text that must not be shown: `Debug` hides it and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text that must not be shown.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text itself, for the client library that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(hidden)")
    }
}

/// Where a secret comes from. A file is read again at each use, so that a rotated password needs no restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// Written in the configuration file or given by environment.
    Inline(Secret),
    /// Kept in this file, the form that `LoadCredential` and mounted secrets have.
    File(PathBuf),
}

impl SecretSource {
    /// The secret as it is now; line ends at the end of a file are not part of it.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or is not UTF-8. The error never quotes the content.
    pub fn read(&self) -> io::Result<Secret> {
        match self {
            SecretSource::Inline(secret) => Ok(secret.clone()),
            SecretSource::File(path) => {
                let text = std::fs::read_to_string(path)?;
                Ok(Secret::new(text.trim_end_matches(['\r', '\n'])))
            }
        }
    }
}

impl FromText for SecretSource {
    fn from_text(text: &str, _: &Setting, _: &Reader) -> Result<SecretSource, Problem> {
        Ok(SecretSource::Inline(Secret::new(text)))
    }
}

/// Whether systemd made this folder of credentials. Its files are copies, made when the service started; elsewhere, as on
/// Kubernetes, they may change.
pub fn are_of_systemd(folder: &Path) -> bool {
    folder.starts_with("/run/credentials")
}

/// Where relative file names are looked up: the folder of systemd's credentials, then the folder of the
/// configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lookup {
    pub(super) credentials: Option<PathBuf>,
    pub(super) beside_config: Option<PathBuf>,
}

impl Lookup {
    /// The path of a file name in the configuration. A name that exists nowhere becomes a path in the
    /// configuration's folder, where an operator would expect to put the file.
    pub(super) fn resolve(&self, name: &str) -> PathBuf {
        let name = Path::new(name);
        if name.is_absolute() {
            return name.to_path_buf();
        }
        let credential =
            self.credentials.as_ref().map(|folder| folder.join(name)).filter(|path| path.exists());
        credential.unwrap_or_else(|| {
            self.beside_config.as_ref().map_or_else(|| name.to_path_buf(), |folder| folder.join(name))
        })
    }

    /// The help for a secret's file that is empty. The units of the package pass an empty file for each credential that is
    /// missing.
    pub(super) fn help_with_empty(&self, path: &Path) -> String {
        match self
            .credentials
            .as_ref()
            .filter(|folder| path.parent() == Some(folder) && are_of_systemd(folder))
        {
            Some(folder) => {
                let unit = folder.file_name().unwrap_or_default().to_string_lossy();
                format!(
                    "it is systemd's copy: write the secret, on one line, into the file that LoadCredential= names in \
                     `systemctl cat {unit}`, and restart"
                )
            }
            None => "write the secret into it, on one line".to_owned(),
        }
    }

    /// The folders that are searched, for a message.
    pub(super) fn places(&self) -> String {
        let folder = self.beside_config.as_deref().filter(|path| !path.as_os_str().is_empty());
        let beside = folder.unwrap_or(Path::new(".")).display();
        match &self.credentials {
            Some(folder) => format!("{} (CREDENTIALS_DIRECTORY), then {beside}", folder.display()),
            None => format!("{beside} (CREDENTIALS_DIRECTORY is not set)"),
        }
    }
}
