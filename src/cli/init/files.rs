//! The files of `init`: their state, and writing them.
//!
//! A file appears at once and complete, and never replaces another one.

use crate::cli::exit::Failed;
use crate::config::{Secret, SecretSource};
use rustix::fs::{Access, access};
use std::fs::{DirBuilder, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// The configuration contains no secret, and the service reads it as an unprivileged user.
pub(super) const CONFIG_MODE: u32 = 0o644;
pub(super) const SECRET_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o755;

/// The name under which the systemd unit passes the password to the service.
pub(super) const PASSWORD_FILE: &str = "postgres-password";
/// The configuration that the packages install. It names no server, so it configures nothing yet.
const PACKAGED: &str = include_str!("../../../packaging/config.toml");

/// The configuration file before `init`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConfigFileState {
    Missing,
    /// As installed by the package.
    Packaged,
    /// Written by `init` or by an operator.
    Existing,
}

/// The directory of the file. An empty name is the current directory.
pub(super) fn folder(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The file of the relay's password: next to the configuration.
pub(super) fn password_file(config: &Path) -> PathBuf {
    config.with_file_name(PASSWORD_FILE)
}

pub(super) fn config_state(file: &Path) -> Result<ConfigFileState, Failed> {
    match std::fs::read(file) {
        Ok(text) if text == PACKAGED.as_bytes() => Ok(ConfigFileState::Packaged),
        Ok(_) => Ok(ConfigFileState::Existing),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(ConfigFileState::Missing),
        Err(error) => Err(unusable("Cannot read", file, &error)),
    }
}

/// The password in this file; `None` if there is no file.
pub(super) fn existing_password(file: &Path) -> Result<Option<Secret>, Failed> {
    match SecretSource::File(file.to_owned()).read() {
        Ok(password) if password.expose().is_empty() => Err(Failed::Configuration(anyhow::anyhow!(
            "{0} is empty. Nothing was changed. Fix: write the password of the relay's role to it, or delete it so that \
             `init` generates a password",
            file.display()
        ))),
        Ok(password) => Ok(Some(password)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unusable("Cannot read", file, &error)),
    }
}

/// Whether users other than the owner can read the file.
pub(super) fn is_open_to_others(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|metadata| metadata.permissions().mode() & 0o077 != 0)
}

/// Checks that files can be created in this folder, or that the folder can be created.
pub(super) fn check_writable(folder: &Path) -> Result<(), Failed> {
    let existing = folder.ancestors().map(or_current).find(|ancestor| ancestor.symlink_metadata().is_ok());
    let existing = existing.unwrap_or(Path::new("/"));
    if !existing.is_dir() {
        let error = std::io::Error::from(ErrorKind::NotADirectory);
        return Err(unusable("Cannot write to", existing, &error));
    }
    access(existing, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| unusable("Cannot write to", existing, &error.into()))
}

fn or_current(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

/// Creates the missing folders, whatever the umask.
pub(super) fn create_folder(folder: &Path) -> Result<(), Failed> {
    let mut missing: Vec<&Path> =
        folder.ancestors().map(or_current).take_while(|path| path.symlink_metadata().is_err()).collect();
    missing.reverse();
    for path in missing {
        let created = DirBuilder::new()
            .mode(FOLDER_MODE)
            .create(path)
            .and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(FOLDER_MODE)));
        created.map_err(|error| unusable("Cannot create", path, &error))?;
    }
    Ok(())
}

/// Writes a new file. Fails if another process has created it meanwhile.
pub(super) fn write_new(file: &Path, text: &str, mode: u32) -> Result<(), Failed> {
    let written = complete(file, text, mode)
        .and_then(|new| new.persist_noclobber(file).map_err(|error| error.error).map(drop));
    written.and_then(|()| sync(file)).map_err(|error| unusable("Cannot write", file, &error))
}

/// Replaces the configuration of the package.
pub(super) fn replace_packaged(file: &Path, text: &str) -> Result<(), Failed> {
    let written = complete(file, text, CONFIG_MODE)
        .and_then(|new| new.persist(file).map_err(|error| error.error).map(drop));
    written.and_then(|()| sync(file)).map_err(|error| unusable("Cannot write", file, &error))
}

/// A complete file under another name in the same folder. It is deleted unless it gets its name.
fn complete(file: &Path, text: &str, mode: u32) -> std::io::Result<NamedTempFile> {
    // Created with mode 600, so that a secret is never readable by others.
    let mut new = tempfile::Builder::new().prefix(".outbox-relay-init-").tempfile_in(folder(file))?;
    new.write_all(text.as_bytes())?;
    new.as_file().set_permissions(Permissions::from_mode(mode))?;
    new.as_file().sync_all()?;
    Ok(new)
}

/// Makes the name of the file durable.
fn sync(file: &Path) -> std::io::Result<()> {
    std::fs::File::open(folder(file))?.sync_all()
}

fn unusable(what: &str, path: &Path, error: &std::io::Error) -> Failed {
    let fix = match error.kind() {
        ErrorKind::AlreadyExists => "run the command again, which keeps the existing file",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "run the command with sudo, or name a configuration file in another directory with --config"
        }
        _ => "name a configuration file in another directory with --config",
    };
    Failed::Configuration(anyhow::anyhow!("{what} {}: {error}. Fix: {fix}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn files_and_folders_get_their_modes_and_are_never_replaced() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("a/b/config.toml");
        check_writable(folder(&file)).unwrap();
        assert!(!root.path().join("a").exists(), "a check creates nothing");
        create_folder(folder(&file)).unwrap();
        assert_eq!(mode(&root.path().join("a/b")), 0o755);
        write_new(&file, "one", CONFIG_MODE).unwrap();
        assert_eq!((mode(&file), std::fs::read_to_string(&file).unwrap().as_str()), (0o644, "one"));
        let Err(Failed::Configuration(error)) = write_new(&file, "two", SECRET_MODE) else { panic!() };
        assert!(format!("{error:#}").contains("Fix: run the command again"), "{error:#}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one");
        let secret = password_file(&file);
        write_new(&secret, "hunter2\n", SECRET_MODE).unwrap();
        assert_eq!((mode(&secret), is_open_to_others(&secret)), (0o600, false));
        assert_eq!(existing_password(&secret).unwrap(), Some(Secret::new("hunter2")));
        let left: Vec<_> = std::fs::read_dir(folder(&file)).unwrap().collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[test]
    fn states_and_faults_of_files_are_distinguished() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("config.toml");
        assert_eq!(config_state(&file).unwrap(), ConfigFileState::Missing);
        std::fs::write(&file, PACKAGED).unwrap();
        assert_eq!(config_state(&file).unwrap(), ConfigFileState::Packaged);
        replace_packaged(&file, "mine").unwrap();
        assert_eq!(config_state(&file).unwrap(), ConfigFileState::Existing);
        assert!(existing_password(&password_file(&file)).unwrap().is_none());
        std::fs::write(password_file(&file), "\n").unwrap();
        assert!(existing_password(&password_file(&file)).is_err());
        let below = file.join("below/config.toml");
        let Err(Failed::Configuration(error)) = check_writable(folder(&below)) else { panic!() };
        assert!(format!("{error:#}").contains("config.toml: not a directory. Fix: name a"), "{error:#}");
    }
}
