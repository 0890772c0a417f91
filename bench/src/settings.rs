//! The user's configuration, the changes to it for a measurement, and the program that gets them.
//!
//! A relay under measurement reads the same file and the same environment as the user's own. The changes are in its
//! environment, which takes precedence. Therefore no secret is written anywhere, and relative file names keep their
//! meaning.

use crate::BenchError;
use outbox_relay::config::{self, Config};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The settings of a relay.
#[derive(Clone, Debug)]
pub struct Settings {
    program: PathBuf,
    file: Option<PathBuf>,
    overrides: Vec<(String, String)>,
}

impl Settings {
    /// The settings of this file, or of the environment alone, for this relay binary.
    pub fn new(program: PathBuf, file: Option<PathBuf>) -> Settings {
        Settings { program, file, overrides: Vec::new() }
    }

    /// Changes the value of one setting.
    #[must_use]
    pub fn with(mut self, section: &str, key: &str, value: impl Into<String>) -> Settings {
        let name = format!("{}{section}__{key}", config::catalogue::VARIABLE_PREFIX).to_uppercase();
        self.overrides.retain(|(known, _)| *known != name);
        self.overrides.push((name, value.into()));
        self
    }

    /// Changes the value of one librdkafka property.
    #[must_use]
    pub(crate) fn with_kafka_property(self, name: &str, value: impl Into<String>) -> Settings {
        let key = format!("properties__{}", name.replace('.', "_"));
        self.with("kafka", &key, value)
    }

    /// The parsed settings.
    pub fn load(&self) -> Result<Config, BenchError> {
        let environment = config::environment()
            .filter(|(name, _)| !self.overrides.iter().any(|(known, _)| known == name))
            .chain(self.overrides.iter().cloned());
        config::load(self.file.as_deref(), environment).map_err(|findings| {
            BenchError::Configuration(format!("The configuration is invalid.\n{findings}"))
        })
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    pub(crate) fn arguments(&self) -> Vec<OsString> {
        self.file.iter().flat_map(|file| ["--config".into(), file.clone().into_os_string()]).collect()
    }

    pub(crate) fn overrides(&self) -> &[(String, String)] {
        &self.overrides
    }
}

const NAME: &str = "outbox-relay";

/// The `outbox-relay` program that the user named, or else the one next to this program, or else the one in `PATH`. It
/// must have the same version, because the limits are measured with the code of this program.
pub(crate) fn find(named: Option<&Path>) -> Result<PathBuf, BenchError> {
    let this = std::env::current_exe().ok();
    let program = locate(named, this.as_deref().and_then(Path::parent), std::env::var_os("PATH").as_deref())?;
    let version = version(&program)?;
    let wanted = concat!("outbox-relay ", env!("CARGO_PKG_VERSION"));
    if version != wanted {
        return Err(BenchError::Configuration(format!(
            "{} is \"{version}\", but this program measures \"{wanted}\". Install both from the same release, or pass \
             --relay PATH.",
            program.display()
        )));
    }
    Ok(program)
}

fn locate(named: Option<&Path>, folder: Option<&Path>, path: Option<&OsStr>) -> Result<PathBuf, BenchError> {
    if let Some(named) = named {
        return if is_program(named) {
            Ok(named.to_owned())
        } else {
            Err(BenchError::Configuration(format!("--relay {} is not a program.", named.display())))
        };
    }
    let folders = folder.map(Path::to_owned).into_iter().chain(path.iter().flat_map(std::env::split_paths));
    folders.map(|folder| folder.join(NAME)).find(|program| is_program(program)).ok_or_else(|| {
        let folder = folder.map_or_else(String::new, |folder| format!(" in {}", folder.display()));
        BenchError::Configuration(format!(
            "Cannot find {NAME}: it is neither next to this program{folder} nor in PATH. Pass --relay PATH."
        ))
    })
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// What the program prints for `-V`.
fn version(program: &Path) -> Result<String, BenchError> {
    let output = Command::new(program).arg("-V").output();
    let output = output
        .map_err(|error| BenchError::Configuration(format!("Cannot run {}: {error}.", program.display())))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn last_change_takes_precedence() {
        let settings = Settings::new("relay".into(), None)
            .with("postgres", "url", "postgres://localhost/a")
            .with("kafka", "bootstrap_servers", "localhost:9092")
            .with("relay", "workers", "4")
            .with("relay", "workers", "5")
            .with_kafka_property("linger.ms", "7");
        let config = settings.load().unwrap();
        assert_eq!(config.relay.workers, 5);
        assert!(config.kafka.properties.contains_key("linger.ms"));
    }

    fn add_program(folder: &Path) -> PathBuf {
        let program = folder.join(NAME);
        fs::write(&program, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        program
    }

    #[test]
    fn named_program_comes_first_then_the_neighbor_then_path() {
        let [named, own, path] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let in_path = add_program(path.path());
        let searched = std::env::join_paths([own.path(), path.path()]).unwrap();
        let find = |named: Option<&Path>| locate(named, Some(own.path()), Some(&searched)).unwrap();
        assert_eq!(find(None), in_path);
        let neighbor = add_program(own.path());
        assert_eq!(find(None), neighbor);
        let named = add_program(named.path());
        assert_eq!(find(Some(&named)), named);
    }

    #[test]
    fn missing_program_is_an_error_with_the_searched_folders() {
        let empty = tempfile::tempdir().unwrap();
        fs::write(empty.path().join(NAME), "not executable").unwrap();
        let error = locate(None, Some(empty.path()), Some(empty.path().as_os_str())).unwrap_err().to_string();
        assert!(
            error.contains(&empty.path().display().to_string()) && error.contains("--relay PATH"),
            "{error}"
        );
        let error = locate(Some(empty.path()), None, None).unwrap_err().to_string();
        assert!(error.ends_with("is not a program."), "{error}");
    }
}
