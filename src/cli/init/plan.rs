//! What `init` will do, as the user reads it before it happens, and doing it. Each step is complete or did nothing, and none
//! overwrites what another process has created: a file appears at once and complete.

use super::inspect::{Servers, topic_failed};
use super::{Init, Wanted};
use crate::cli::failed::Failed;
use crate::cli::output::{self, counted};
use crate::config::{Secret, SecretSource};
use anyhow::Context;
use askama::Template;
use kafka::operate::topics::Mode;
use postgres::access::roles::NewRoles;
use postgres::schema::migrate::{self, MigrationState, Series, State, Texts};
use rustix::fs::{Access, access};
use settings::secret::file_of_service;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::{NamedTempFile, PersistError};

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
    Packaged,
    /// Written by `init` or by an operator.
    Existing,
}

pub(super) enum Password {
    Generated(Secret),
    /// In the file, which is kept.
    Kept(Secret),
    /// Not known, because the configuration and the role exist.
    Unknown,
}

/// Every step, and what exists already. As text, one step per line.
#[derive(Template)]
#[template(path = "init/plan.txt")]
pub(super) struct Plan<'a> {
    pub(super) wanted: &'a Wanted,
    pub(super) config: ConfigFileState,
    pub(super) config_text: String,
    pub(super) password: Password,
    pub(super) password_file: PathBuf,
    pub(super) migrations: Vec<MigrationState>,
    pub(super) existing_roles: Vec<String>,
    pub(super) roles: NewRoles,
    /// Each wanted topic, and whether it exists.
    pub(super) topics: Vec<(String, bool)>,
}

impl Plan<'_> {
    fn pending_migrations(&self) -> usize {
        self.migrations.iter().filter(|known| known.state == State::Pending).count()
    }

    /// Without a configuration, an earlier run may have been interrupted before it granted the privileges. In another
    /// database, the roles exist without them.
    pub(super) fn grants(&self) -> bool {
        let has_all_roles = self.existing_roles.len() == self.role_names().len();
        !has_all_roles || self.pending_migrations() > 0 || self.writes_config()
    }

    fn writes_config(&self) -> bool {
        self.config != ConfigFileState::Existing
    }

    pub(super) fn changes_something(&self) -> bool {
        self.grants() || self.topics.iter().any(|(_, exists)| !exists)
    }

    fn role_names(&self) -> [String; 4] {
        let role = &self.wanted.args.role;
        [role.relay().to_owned(), role.operator(), role.monitor(), role.writer()]
    }

    pub(super) fn details(&self) -> String {
        let Wanted { file, args: Init { table, .. }, .. } = self.wanted;
        let mut text = String::new();
        if self.pending_migrations() > 0 {
            let pending = migrate::print_pending(table, &self.migrations, Texts::of(Series::Outbox, table));
            text += &format!(
                "-- SQL: the tables of {table}. Each migration has its own transaction.\n\n{pending}\n"
            );
        }
        if self.grants() {
            let roles = &self.roles.shown;
            text += &format!("-- SQL: the roles and their privileges, in one transaction.\n\n{roles}\n");
        }
        if self.writes_config() {
            text += &format!("-- File: {}\n\n{}\n", file.display(), self.config_text);
        }
        text
    }

    /// The password file comes first, because a role whose password is lost cannot be used. The configuration comes last.
    pub(super) async fn apply(&self, servers: &mut Servers) -> Result<(), Failed> {
        if let Password::Generated(password) = &self.password {
            create_folder(folder(&self.password_file))?;
            write_new(&self.password_file, &format!("{}\n", password.expose()), SECRET_MODE)?;
            done(&format!("file {}", self.password_file.display()))?;
        }
        let what = "`init` completed only some of its steps. Fix the cause, then run the command again: it keeps what exists";
        self.apply_rest(servers).await.map_err(|failed| failed.map(|error| error.context(what)))
    }

    async fn apply_rest(&self, servers: &mut Servers) -> Result<(), Failed> {
        let Wanted { file, shape, args: Init { table, role, .. }, .. } = self.wanted;
        if !migrate::apply(&mut servers.connection, table).await?.is_empty() {
            done(&format!("tables of {table}"))?;
        }
        if self.grants() {
            let created = self.roles.create(&mut servers.connection).await;
            created.context("creating the roles and granting their privileges")?;
            done(&format!("role {role} and the group roles"))?;
        }
        if let Some(topics) = &servers.topics {
            for (topic, _) in self.topics.iter().filter(|(_, exists)| !exists) {
                if topics.create(topic, *shape, Mode::Create).await.map_err(topic_failed)? {
                    done(&format!("topic {topic}"))?;
                }
            }
        }
        match self.config {
            ConfigFileState::Existing => return Ok(()),
            ConfigFileState::Missing => write_new(file, &self.config_text, CONFIG_MODE)?,
            ConfigFileState::Packaged => replace_packaged(file, &self.config_text)?,
        }
        done(&format!("file {}", file.display()))
    }
}

fn done(what: &str) -> Result<(), Failed> {
    output::text(format!("{:<14} {what}\n", "done"))
}

/// The directory of the file. An empty name is the current directory.
pub(super) fn folder(file: &Path) -> &Path {
    file.parent().map_or(Path::new("."), or_current)
}

/// The file of the relay's password: next to the configuration, where the unit of this configuration expects it.
pub(super) fn password_file(config: &Path) -> PathBuf {
    file_of_service(config, PASSWORD_FILE).unwrap_or_else(|| config.with_file_name(PASSWORD_FILE))
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
        Ok(password) if password.expose().is_empty() => Err(Failed::configuration(format!(
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
    let unwritable = |error: io::Error| unusable("Cannot write to", existing, &error);
    if !existing.is_dir() {
        return Err(unwritable(ErrorKind::NotADirectory.into()));
    }
    access(existing, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| unwritable(error.into()))
}

fn or_current(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

/// Creates the missing folders, whatever the umask.
pub(super) fn create_folder(folder: &Path) -> Result<(), Failed> {
    let missing: Vec<&Path> =
        folder.ancestors().map(or_current).take_while(|path| path.symlink_metadata().is_err()).collect();
    for path in missing.into_iter().rev() {
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
    write(file, text, mode, NamedTempFile::persist_noclobber)
}

/// Fails if another process has changed the file since `init` looked at it.
pub(super) fn replace_packaged(file: &Path, text: &str) -> Result<(), Failed> {
    if config_state(file)? != ConfigFileState::Packaged {
        return Err(unusable("Cannot write", file, &ErrorKind::AlreadyExists.into()));
    }
    write(file, text, CONFIG_MODE, NamedTempFile::persist)
}

/// Writes a complete file under another name in the same folder, and then gives it its name.
fn write(
    file: &Path,
    text: &str,
    mode: u32,
    persist: fn(NamedTempFile, PathBuf) -> Result<File, PersistError>,
) -> Result<(), Failed> {
    let write = || {
        // Created with mode 600, so that a secret is never readable by others.
        let mut new = tempfile::Builder::new().prefix(".outbox-relay-init-").tempfile_in(folder(file))?;
        new.write_all(text.as_bytes())?;
        new.as_file().set_permissions(Permissions::from_mode(mode))?;
        new.as_file().sync_all()?;
        persist(new, file.to_owned())?;
        // Makes its name durable.
        File::open(folder(file))?.sync_all()
    };
    write().map_err(|error: io::Error| unusable("Cannot write", file, &error))
}

fn unusable(what: &str, path: &Path, error: &io::Error) -> Failed {
    let fix = match error.kind() {
        ErrorKind::AlreadyExists => "run the command again, which keeps the existing file",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "run the command with sudo, or name a configuration file in another directory with --config"
        }
        _ => "name a configuration file in another directory with --config",
    };
    Failed::configuration(format!("{what} {}: {error}. Fix: {fix}", path.display()))
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
        assert!(replace_packaged(&file, "theirs").is_err(), "it was edited meanwhile");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
        assert!(existing_password(&password_file(&file)).unwrap().is_none());
        std::fs::write(password_file(&file), "\n").unwrap();
        assert!(existing_password(&password_file(&file)).is_err());
        let below = file.join("below/config.toml");
        let Err(Failed::Configuration(error)) = check_writable(folder(&below)) else { panic!() };
        assert!(format!("{error:#}").contains("config.toml: not a directory. Fix: name a"), "{error:#}");
    }
}
