//! The configuration: reads typed settings from the file and the environment.
//!
//! [`catalogue`] defines every setting once. [`load`] reads the file and the environment, and reports all problems, not only
//! the first one. It opens no connections.

pub mod catalogue;
mod outbox;
mod reload;
mod rules;
#[cfg(test)]
mod tests;
mod writing;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use ::settings::findings::{Finding, Findings, Place, Severity};
pub use ::settings::secret::{Secret, SecretSource, are_of_systemd};
pub use ::settings::size::{ByteSize, InvalidSize};
pub use catalogue::{Admin, Effect, Log, Outbox, Reaper, Relay};
pub use kafka::envelope::Envelope;
pub use kafka::headers::{HeaderTemplate, Part, default_headers};
pub use kafka::options::{Aws, ClientAuthentication, Kafka, OAuth, Property};
pub use kafka::properties;
pub use postgres::options::{
    AuthMethod, Authentication, Connection, ConnectionError, OnSent, PasswordCommand, Postgres, Tls, TlsMode,
    TlsVersion,
};
pub use postgres::table::{Column, Columns, TableName, TableNameError, quote_identifier};
pub use relay::OnRejected;
pub use relay::topic::{TopicAllow, TopicAllowError};
pub use reload::{Change, changes};
pub use rules::LogFormat;
pub(crate) use writing::draft::{Draft, DraftPassword};
pub use writing::example::example;
pub(crate) use writing::shown::SettingInForce;

use ::settings::entries::{self, Entries};
use ::settings::reader::Reader;
use ::settings::secret::Lookup;
use ::settings::setting::Section;
use catalogue::CATALOGUE;
use kafka::cluster::KafkaCluster;
use relay::Limits;
use relay::failure::KafkaFailure;
use relay::reaper::Pace;

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

/// Shorter intervals deliver sooner, but each look is a round trip.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// A flow reads every few milliseconds, so for rarer rows it would cost more than claims.
const FLOW_GAP: Duration = Duration::from_millis(30);
/// Recording this many rows takes about as long as one read of a flow.
const FLOW_RECORDS: usize = 64;

impl Config {
    /// The cluster to publish to. Connects to nothing yet.
    ///
    /// # Errors
    ///
    /// If a secret cannot be read.
    pub fn cluster(&self) -> Result<KafkaCluster, KafkaFailure> {
        KafkaCluster::new(&self.kafka, &self.outbox.headers, &self.limits())
    }

    /// The configured limits of a batch.
    pub fn limits(&self) -> Limits {
        Limits {
            batch_rows: self.relay.batch_size,
            batch_bytes: self.relay.batch_bytes.as_usize(),
            publish_timeout: self.relay.publish_timeout,
            takeover_timeout: self.relay.takeover_timeout,
            // Planning the read of a flow every few milliseconds would cost more than the flow saves.
            flow_window: if self.postgres.prepared_statements {
                self.relay.flow_window
            } else {
                Duration::ZERO
            },
            flow_gap: FLOW_GAP,
            flow_records: FLOW_RECORDS,
            poll_interval: self.relay.poll_interval,
            look_every: LOOK_EVERY,
            on_rejected: self.outbox.on_rejected,
            rejections_before_hold: self.outbox.rejections_before_hold,
        }
    }

    /// How long old rows are kept, and how fast they are deleted.
    pub(crate) fn pace(&self) -> Pace {
        Pace {
            interval: self.reaper.interval,
            retention: self.reaper.retention,
            inbox_retention: self.reaper.inbox_retention,
            idempotency_retention: self.reaper.idempotency_retention,
            batch_rows: self.reaper.batch_size,
        }
    }
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
/// with secrets and certificates are opened once, to check that they are readable.
///
/// # Errors
///
/// All findings, in the order of the file, including warnings.
pub fn load(path: Option<&Path>, env: impl Iterator<Item = (String, String)>) -> Result<Config, Findings> {
    load_for(Servers::Both, path.map_or(Source::Environment, Source::File), env)
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
) -> Result<Config, Findings> {
    load_for(Servers::Postgres, path.map_or(Source::Environment, Source::File), env)
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
) -> Result<Config, Findings> {
    load_for(Servers::Both, Source::Text(path, text), env)
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

impl Servers {
    /// Whether to open the files of a section. Files for other servers are not opened.
    fn open_files_of(self) -> fn(&str) -> bool {
        match self {
            Servers::Both => |_| true,
            Servers::Postgres => |section| section == Postgres::NAME,
        }
    }
}

/// What to do if a file that a setting names may not be read.
fn help_with_denied(setting: &str) -> String {
    let help = "make it readable for the user that runs the relay";
    if !setting.starts_with("[postgres]") {
        return help.to_owned();
    }
    let url = Postgres::url.variable();
    format!("{help}. For other commands, use sudo, or set {url} to a URL with your own role")
}

fn load_for(
    servers: Servers,
    source: Source<'_>,
    env: impl Iterator<Item = (String, String)>,
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
        Source::File(path) => entries::from_file(&CATALOGUE, path, &mut findings),
        Source::Text(path, text) => entries::from_text(&CATALOGUE, path, text, &mut findings),
        Source::Environment => (Entries::default(), true),
    };
    let given = entries::from_environment(&CATALOGUE, variables, &mut findings);
    entries.override_with(given, postgres::options::is_replaced);
    let file = path.map(Path::to_path_buf);
    let mut reader = Reader {
        entries,
        findings,
        lookup,
        file,
        whole,
        catalogue: &CATALOGUE,
        opens_files_of: servers.open_files_of(),
        help_with_denied,
    };
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
