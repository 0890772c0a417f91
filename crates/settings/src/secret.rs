//! Secrets and their sources.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

pub const HIDDEN: &str = "hidden";

/// A text that must not be printed: `Debug` hides it, and there is no `Display`. Dropping it wipes the text.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(Zeroizing::new(text.into()))
    }

    /// The text, for a client library.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(hidden)")
    }
}

/// The source of a secret. A file is reloaded at each use, so that a rotated password needs no restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// In the configuration file or the environment.
    Inline(Secret),
    /// In its own file, as with `LoadCredential` and mounted secrets.
    File(PathBuf),
}

impl SecretSource {
    /// The current value of the secret, without trailing line breaks of the file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or is not UTF-8. The error never quotes the content.
    pub fn read(&self) -> io::Result<Secret> {
        match self {
            SecretSource::Inline(secret) => Ok(secret.clone()),
            SecretSource::File(path) => {
                let text = Zeroizing::new(std::fs::read_to_string(path)?);
                Ok(Secret::new(text.trim_end_matches(['\r', '\n'])))
            }
        }
    }
}

/// Whether systemd created this folder of credentials. It copies the files when the service starts. Elsewhere, as on
/// Kubernetes, the files may change.
pub fn are_of_systemd(folder: &Path) -> bool {
    folder.starts_with("/run/credentials")
}

/// The file from which systemd passes this secret to the service of the configuration file: NAME.secret for NAME.toml, but
/// without a prefix for config.toml. `None` if the name is not that of a file in the same folder.
pub fn file_of_service(config: &Path, secret: &str) -> Option<PathBuf> {
    let is_plain = Path::new(secret).file_name().is_some_and(|name| name == secret);
    let stem = config.file_stem().filter(|_| is_plain)?.to_str()?;
    let name = if stem == "config" { secret.to_owned() } else { format!("{stem}.{secret}") };
    Some(config.with_file_name(name))
}

/// The places for relative file names: first systemd's credentials, then the folder of the configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lookup {
    pub credentials: Option<PathBuf>,
    pub config_file: Option<PathBuf>,
}

impl Lookup {
    /// The path for a file name in the configuration. If the file does not exist, this is a path in the folder of the
    /// configuration file, where an operator would expect it. A command that is run by hand has no credentials, and uses the
    /// file from which systemd copies them. The unit's `ExecReload=` sets the folder even if systemd created none.
    pub fn resolve(&self, name: &str) -> PathBuf {
        let first = match (&self.credentials, &self.config_file) {
            (Some(folder), _) if folder.is_dir() => Some(folder.join(name)),
            (_, Some(config)) => file_of_service(config, name),
            (_, None) => None,
        };
        first.filter(|path| path.exists()).unwrap_or_else(|| self.config_folder().join(name))
    }

    fn config_folder(&self) -> &Path {
        self.config_file.as_deref().and_then(Path::parent).unwrap_or(Path::new(""))
    }

    /// The help for an empty file of a secret. The systemd units of the package pass an empty file for a missing credential.
    pub fn help_with_empty(&self, path: &Path) -> String {
        match self
            .credentials
            .as_ref()
            .filter(|folder| path.parent() == Some(folder) && are_of_systemd(folder))
        {
            Some(folder) => {
                let unit = folder.file_name().unwrap_or_default().to_string_lossy();
                format!(
                    "write the secret, on one line, to the file that LoadCredential= names in `systemctl cat \
                     {unit}`, and restart the service. This file is systemd's copy"
                )
            }
            None => "write the secret to it, on one line".to_owned(),
        }
    }

    /// The help for a file that does not exist.
    pub fn help_with_absent(&self) -> String {
        let folder = Some(self.config_folder()).filter(|path| !path.as_os_str().is_empty());
        let config_folder = folder.unwrap_or(Path::new(".")).display();
        let places = match &self.credentials {
            Some(folder) => format!("{} (CREDENTIALS_DIRECTORY), then {config_folder}", folder.display()),
            None => format!("{config_folder} (CREDENTIALS_DIRECTORY is not set)"),
        };
        format!("correct the name, or create the file. Relative names are looked up in {places}")
    }
}
