//! The configuration: reads typed settings from the file and the environment.
//!
//! [`catalogue`] defines every setting once. [`load`] reads the file and the environment, and reports all problems, not only
//! the first one. It opens no connections.

pub mod catalogue;
mod choices;
mod findings;
mod kafka;
mod outbox;
mod password_command;
mod postgres;
mod reading;
mod reload;
mod rules;
mod secret;
mod setting;
mod size;
#[cfg(test)]
mod tests;
mod writing;

use std::path::{Path, PathBuf};

pub use catalogue::{Admin, Aws, Effect, Kafka, Log, OAuth, Outbox, Postgres, Reaper, Relay};
pub use choices::{ClientAuthentication, Envelope, LogFormat, OnRejected, OnSent};
pub use findings::{Finding, Findings, Place, Severity};
pub(crate) use kafka::OAUTHBEARER;
pub use kafka::{Property, properties};
pub use outbox::columns::{Column, Columns};
pub use outbox::headers::{HeaderTemplate, Part, default_headers};
pub use outbox::table::{TableName, TableNameError, quote_identifier};
pub use outbox::topic_allow::{TopicAllow, TopicAllowError};
pub use password_command::PasswordCommand;
pub use postgres::{AuthMethod, Authentication, Connection, ConnectionError, Tls, TlsMode, TlsVersion};
pub use reload::{Change, changes};
pub use secret::{Secret, SecretSource, are_of_systemd};
pub use size::{ByteSize, InvalidSize};
pub(crate) use writing::draft::{Draft, DraftPassword};
pub use writing::example::example;
pub(crate) use writing::shown::SettingInForce;

use properties::PropertyCheck;
use reading::reader::Reader;
use secret::Lookup;
use setting::Section;

/// Read if nothing else is given and it exists. The packages and the container image put the configuration there.
pub(crate) const DEFAULT_FILE: &str = "/etc/outbox-relay/config.toml";

/// All settings, valid and complete.
#[derive(Clone, Debug)]
pub struct Config {
    /// The database that contains the outbox.
    pub postgres: Postgres,
    /// The cluster to publish to.
    pub kafka: Kafka,
    /// The table, and how rows become records.
    pub outbox: Outbox,
    /// Batch sizes and timeouts.
    pub relay: Relay,
    /// Deletion of old rows.
    pub reaper: Reaper,
    /// The status page, metrics and health checks over HTTP.
    pub admin: Admin,
    /// Logging.
    pub log: Log,
    /// Findings that do not stop the relay.
    pub warnings: Findings,
}

/// The environment of this process. Unlike [`std::env::vars`], it does not panic if a value is not UTF-8. It replaces invalid
/// bytes, so that validation reports the setting.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    std::env::vars_os().map(move |(name, value)| (text(name), text(value)))
}

/// Reads the configuration file, if there is one, applies the environment, and validates the result.
///
/// `env` is usually [`environment`]. Variables that start with `OUTBOX_RELAY__`, and `CREDENTIALS_DIRECTORY`, are used. Files
/// with secrets and certificates are opened once, to check that they are readable. `check` is usually
/// `kafka::properties::check`.
///
/// # Errors
///
/// All findings, in the order of the file, including warnings.
pub fn load(
    path: Option<&Path>,
    env: impl Iterator<Item = (String, String)>,
    check: PropertyCheck,
) -> Result<Config, Findings> {
    load_for(Servers::Both, path.map_or(Source::Environment, Source::File), env, check)
}

/// [`load`], for a command that uses only the database. It does not open files for Kafka, because an operator may not be
/// allowed to read the relay's secrets.
///
/// # Errors
///
/// See [`load`].
pub fn load_for_database(
    path: Option<&Path>,
    env: impl Iterator<Item = (String, String)>,
    check: PropertyCheck,
) -> Result<Config, Findings> {
    load_for(Servers::Postgres, path.map_or(Source::Environment, Source::File), env, check)
}

/// [`load`], for a file that does not exist yet. `text` is its future content.
///
/// # Errors
///
/// See [`load`].
pub(crate) fn load_text(
    path: &Path,
    text: &str,
    env: impl Iterator<Item = (String, String)>,
    check: PropertyCheck,
) -> Result<Config, Findings> {
    load_for(Servers::Both, Source::Text(path, text), env, check)
}

/// Where the settings come from, in addition to the environment.
#[derive(Clone, Copy)]
enum Source<'a> {
    Environment,
    File(&'a Path),
    /// The content of a file, and its path.
    Text(&'a Path, &'a str),
}

impl Source<'_> {
    fn path(&self) -> Option<&Path> {
        match self {
            Source::Environment => None,
            Source::File(path) | Source::Text(path, _) => Some(path),
        }
    }
}

/// The servers that a command connects to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Servers {
    Both,
    Postgres,
}

fn load_for(
    servers: Servers,
    source: Source<'_>,
    env: impl Iterator<Item = (String, String)>,
    check: PropertyCheck,
) -> Result<Config, Findings> {
    let path = source.path();
    let variables: Vec<_> = env.collect();
    let credentials = variables.iter().find(|(name, _)| name == "CREDENTIALS_DIRECTORY");
    let lookup = Lookup {
        credentials: credentials.map(|(_, folder)| PathBuf::from(folder)),
        config_folder: path.and_then(Path::parent).map(Path::to_path_buf),
    };
    let mut findings = Findings::default();
    let (mut entries, whole) = match source {
        Source::File(path) => reading::entries::from_file(path, &mut findings),
        Source::Text(path, text) => reading::entries::from_text(path, text, &mut findings),
        Source::Environment => (reading::entries::Entries::default(), true),
    };
    entries.override_with(reading::entries::from_environment(variables, &mut findings));
    let file = path.map(Path::to_path_buf);
    let mut reader = Reader { entries, findings, lookup, file, whole, servers, check };
    reader.report_missing();
    let config = read(&mut reader);
    let mut findings = reader.findings;
    findings.sort();
    match config {
        Some(config) if !findings.has_errors() => Ok(Config { warnings: findings, ..config }),
        _ => Err(findings),
    }
}

/// Reads every section, even after an invalid one, to report all findings.
fn read(reader: &mut Reader) -> Option<Config> {
    let postgres = Postgres::from(reader);
    let kafka = Kafka::from(reader);
    let outbox = Outbox::from(reader);
    let relay = Relay::read(reader).inspect(|relay| relay.check(reader));
    let reaper = Reaper::read(reader);
    let admin = Admin::read(reader).inspect(|admin| admin.warn(reader));
    let log = Log::read(reader);
    Some(Config {
        postgres: postgres?,
        kafka: kafka?,
        outbox: outbox?,
        relay: relay?,
        reaper: reaper?,
        admin: admin?,
        log: log?,
        warnings: Findings::default(),
    })
}
