//! The configuration: reads typed settings from the file and the environment.
//!
//! [`catalogue`] defines every setting once. [`load`] reads the file and the environment, and reports all problems, not only
//! the first one. It opens no connections.

pub mod catalogue;

use ::settings::choice;
use ::settings::file::{self, Entries, nearest};
use ::settings::findings::Problem;
pub use ::settings::findings::{Findings, Severity};
pub use ::settings::reader::{ByteSize, InvalidSize};
use ::settings::reader::{Reader, Value};
use ::settings::secret::Lookup;
pub use ::settings::secret::{Secret, SecretSource, are_of_systemd};
use ::settings::setting::{Compared, Section, Setting};
use catalogue::CATALOGUE;
pub use catalogue::{Admin, Effect, Log, Outbox, Reaper, Relay, example};
use humantime::format_duration;
use kafka::cluster::KafkaCluster;
use kafka::headers::{self, EnvelopeOptions};
pub use kafka::headers::{HeaderTemplate, Part, default_headers};
pub use kafka::options::{ClientAuthentication, Kafka, Property};
pub use postgres::columns::{Column, Columns};
pub use postgres::options::{Connection, ConnectionError, OnSent, PasswordCommand, Postgres, TlsMode};
pub use postgres::table::{TableName, TableNameError};
use relay::Limits;
use relay::failure::KafkaFailure;
use relay::reaper::Pace;
pub use relay::topic::TopicAllow;
use relay::topic::TopicRules;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Read if nothing else is given and it exists. The packages and the container image put the configuration there.
pub(crate) const DEFAULT_FILE: &str = "/etc/outbox-relay/config.toml";

/// The unit of the packages that runs with this configuration file.
pub(crate) fn unit(file: &str) -> Option<String> {
    let name = file.strip_prefix("/etc/outbox-relay/")?.strip_suffix(".toml")?;
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    match name {
        "config" => Some("outbox-relay".to_owned()),
        _ => (!name.is_empty() && !name.starts_with('.') && name.chars().all(is_plain))
            .then(|| format!("outbox-relay@{name}")),
    }
}

/// Below this, an ordinary pause of the machine or the network would end a claim.
const TAKEOVER_TIMEOUT_LEAST: Duration = Duration::from_secs(3);
/// The largest allowed size of all batches together.
const BATCHES_MOST: u64 = 8 << 30;
/// Properties of librdkafka that delay the first attempt or the next one.
const WAITS: [&str; 6] = [
    "linger.ms",
    "queue.buffering.max.ms",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
];
/// Timeouts of single requests in librdkafka, whose own minimum is a few milliseconds.
const REQUESTS: [&str; 3] = ["api.version.request.timeout.ms", "request.timeout.ms", "socket.timeout.ms"];
const REQUEST_LEAST_MS: f64 = 1_000.0;
/// Topic templates without a fixed part.
const WRITERS_CHOOSE: [&str; 2] = ["{aggregate_type}", "{event_type}"];
/// Shorter intervals deliver sooner, but each look is a round trip.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// A flow reads every few milliseconds, so for rarer rows it would cost more than claims.
const FLOW_GAP: Duration = Duration::from_millis(30);
/// Recording this many rows takes about as long as one read of a flow.
const FLOW_RECORDS: usize = 64;

#[derive(Clone, Debug)]
pub struct Config {
    pub postgres: Postgres,
    pub kafka: Kafka,
    pub outbox: Outbox,
    pub relay: Relay,
    pub reaper: Reaper,
    pub admin: Admin,
    pub log: Log,
    /// Findings that do not stop the relay.
    pub warnings: Findings,
}

choice! {
    LogFormat {
        /// journald if stderr is the journal, else text.
        Auto = "auto",
        Text = "text",
        Json = "json",
        /// Journal entries with fields.
        Journald = "journald",
    }
}

impl Config {
    /// The cluster to publish to. Connects to nothing yet. Fails if a secret cannot be read.
    pub fn cluster(&self) -> Result<KafkaCluster, KafkaFailure> {
        KafkaCluster::new(&self.kafka, &self.outbox.headers, &self.limits())
    }

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

    /// The settings in force, in the order of the file. Settings without a value are left out, and secrets are hidden.
    pub(crate) fn shown(&self) -> Vec<SettingInForce> {
        let mut shown: Vec<SettingInForce> = Vec::new();
        let mut show = |section, key: &str, value: Option<String>| {
            shown.extend(value.map(|value| SettingInForce { section, key: key.to_owned(), value }));
        };
        for one in compared(self, self) {
            show(one.setting.section, one.setting.key, one.shown);
        }
        for (name, property) in &self.kafka.properties {
            show("kafka.properties", name, property.shown());
        }
        for header in &self.outbox.headers {
            show("outbox.headers", &header.name, Some(header.template()));
        }
        for (column, name) in self.outbox.table.columns().renamed() {
            show("outbox.columns", column.name(), Some(name.to_owned()));
        }
        // A table follows its section.
        shown.sort_by_key(|one| {
            CATALOGUE.sections.iter().rposition(|group| one.section.starts_with(group.name))
        });
        shown
    }

    /// This configuration, with the settings of `new` that a running relay can apply.
    ///
    /// A reload never changes the source or the destination of events, nor the tasks and connections of the relay. It applies
    /// limits, intervals, secrets and the log level. The catalogue defines the effect of each setting.
    pub fn reloaded(&self, new: &Config) -> Config {
        let postgres = if same_database(self, new) { &new.postgres } else { &self.postgres };
        let kafka = if same_cluster(&self.kafka, &new.kafka) { &new.kafka } else { &self.kafka };
        Config {
            postgres: self.postgres.reloaded(postgres),
            kafka: kafka.clone(),
            outbox: self.outbox.reloaded(&new.outbox),
            relay: self.relay.reloaded(&new.relay),
            reaper: self.reaper.reloaded(&new.reaper),
            admin: self.admin.reloaded(&new.admin),
            log: self.log.reloaded(&new.log),
            warnings: self.warnings.clone(),
        }
    }

    /// Why these settings cannot be used together, after a reload that applies only some of those that have changed.
    pub(crate) fn conflict(&self) -> Option<String> {
        let of_property = |(name, property): (&String, &Property)| match property {
            Property::Plain(text) => self.relay.property_problem(name, text),
            Property::Secret(_) => None,
        };
        let of_properties = || self.kafka.properties.iter().find_map(of_property);
        self.relay.memory_problem().or_else(of_properties).map(|problem| problem.message)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SettingInForce {
    /// Such as `relay`.
    pub(crate) section: &'static str,
    pub(crate) key: String,
    /// A secret is hidden.
    pub(crate) value: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Such as `relay`.
    pub section: &'static str,
    pub key: String,
    pub effect: Effect,
}

/// Every setting except tables. Twins share an entry.
fn compared(old: &Config, new: &Config) -> Vec<Compared> {
    /// A section that is used in only one of them differs as a whole.
    fn optional<S: Section>(old: Option<&S>, new: Option<&S>) -> Vec<Compared> {
        if let (Some(old), Some(new)) = (old, new) {
            return old.compared(new);
        }
        let is_first = |setting: &&Setting| CATALOGUE.twin(setting).is_none_or(|twin| setting.key < twin.key);
        let settings = S::SETTINGS.iter().filter(|setting| !setting.kind.is_table()).filter(is_first);
        let differs = old.is_some() != new.is_some();
        settings.map(|setting| Compared { setting, shown: None, differs }).collect()
    }
    let sections = [
        old.postgres.compared(&new.postgres),
        old.kafka.compared(&new.kafka),
        optional(old.kafka.oauth.as_ref(), new.kafka.oauth.as_ref()),
        optional(old.kafka.aws.as_ref(), new.kafka.aws.as_ref()),
        old.outbox.compared(&new.outbox),
        old.relay.compared(&new.relay),
        old.reaper.compared(&new.reaper),
        old.admin.compared(&new.admin),
        old.log.compared(&new.log),
    ];
    sections.into_iter().flatten().collect()
}

/// The differences between two configurations: those of tables after all others.
pub fn changes(old: &Config, new: &Config) -> Vec<Change> {
    let change = |Compared { setting, differs, .. }: Compared| {
        let other_database = setting.section == "postgres" && !same_database(old, new);
        let effect = if other_database { Effect::Restart } else { setting.effect };
        let is_table = (setting.section, setting.key) == ("outbox", "table");
        let is_changed = if is_table { !old.outbox.table.is_same_table(&new.outbox.table) } else { differs };
        is_changed.then(|| Change { section: setting.section, key: setting.key.to_owned(), effect })
    };
    let mut changes: Vec<Change> = compared(old, new).into_iter().filter_map(change).collect();
    changes.extend(properties(&old.kafka, &new.kafka));
    let envelope = |outbox: &Outbox| (outbox.envelope, outbox.cloudevents_source.clone());
    let same_envelope = envelope(&old.outbox) == envelope(&new.outbox);
    if same_envelope && old.outbox.headers != new.outbox.headers {
        changes.push(Change { section: "outbox", key: "headers".to_owned(), effect: Effect::Restart });
    }
    if old.outbox.table.columns() != new.outbox.table.columns() {
        changes.push(Change { section: "outbox", key: "columns".to_owned(), effect: Effect::Restart });
    }
    changes
}

/// A running relay applies changed secrets if nothing else about the cluster changed.
fn properties(old: &Kafka, new: &Kafka) -> Vec<Change> {
    let mut names: Vec<&String> = old.properties.keys().chain(new.properties.keys()).collect();
    names.sort();
    names.dedup();
    let effect = if same_cluster(old, new) { Effect::Now } else { Effect::Restart };
    let change = |name: &String| Change { section: "kafka.properties", key: name.clone(), effect };
    let differs = |name: &&String| old.properties.get(*name) != new.properties.get(*name);
    names.into_iter().filter(differs).map(change).collect()
}

/// The password and the TLS mode belong to one server, so they must not be used for another one.
fn same_database(old: &Config, new: &Config) -> bool {
    old.postgres.url == new.postgres.url
}

/// Whether at most the values of secrets differ.
fn same_cluster(old: &Kafka, new: &Kafka) -> bool {
    let same = |((name, old), (other, new)): ((&String, &Property), (&String, &Property))| {
        name == other && (old == new || matches!((old, new), (Property::Secret(_), Property::Secret(_))))
    };
    old.bootstrap_servers == new.bootstrap_servers
        && old.oauth == new.oauth
        && old.aws == new.aws
        && old.properties.len() == new.properties.len()
        && old.properties.iter().zip(&new.properties).all(same)
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
/// Fails with all findings, in the order of the file, including warnings.
pub fn load(path: Option<&Path>, env: impl Iterator<Item = (String, String)>) -> Result<Config, Findings> {
    load_for(|_| true, path, None, env)
}

/// [`load`], for a command that uses only the database. It does not open files for Kafka, because an operator may not be
/// allowed to read the relay's secrets.
pub fn load_for_database(
    path: Option<&Path>,
    env: impl Iterator<Item = (String, String)>,
) -> Result<Config, Findings> {
    load_for(|section| section == Postgres::NAME, path, None, env)
}

/// [`load`], for a file that does not exist yet. `text` is its future content.
pub(crate) fn load_text(
    path: &Path,
    text: &str,
    env: impl Iterator<Item = (String, String)>,
) -> Result<Config, Findings> {
    load_for(|_| true, Some(path), Some(text), env)
}

/// What to do if a file that a setting names may not be read.
fn help_with_denied(setting: &str) -> String {
    let help = "make it readable for the user that runs the relay. For other commands, use sudo";
    let url = Postgres::url.variable();
    match setting.starts_with("[postgres]") {
        true => format!("{help}, or set {url} to a URL with your own role"),
        false => format!("{help} --preserve-env={url}"),
    }
}

/// Files that settings of other sections name are not opened. `text` is the content of the file, if it does not exist yet.
fn load_for(
    opens_files_of: fn(&str) -> bool,
    path: Option<&Path>,
    text: Option<&str>,
    env: impl Iterator<Item = (String, String)>,
) -> Result<Config, Findings> {
    let variables: Vec<_> = env.collect();
    let credentials = variables.iter().find(|(name, _)| name == "CREDENTIALS_DIRECTORY");
    let lookup = Lookup {
        credentials: credentials.map(|(_, folder)| PathBuf::from(folder)),
        config_file: path.map(Path::to_path_buf),
    };
    let mut findings = Findings::default();
    let (mut entries, whole) = match (path, text) {
        (Some(path), None) => file::from_file(&CATALOGUE, path, &mut findings),
        (Some(path), Some(text)) => file::from_text(&CATALOGUE, path, text, &mut findings),
        (None, _) => (Entries::default(), true),
    };
    let given = file::from_environment(&CATALOGUE, variables, &mut findings);
    entries.override_with(given, &CATALOGUE, |given, section, key| {
        postgres::options::is_replaced(given, section, key)
            || kafka::options::is_replaced(given, section, key)
    });
    let mut reader =
        Reader { entries, findings, lookup, whole, catalogue: &CATALOGUE, opens_files_of, help_with_denied };
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
    // Unit tests of the settings run in every build.
    let kafka = Kafka::from(reader, cfg!(any(feature = "aws", test)));
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

impl Outbox {
    fn from(reader: &mut Reader) -> Option<Outbox> {
        let outbox = Outbox::read(reader);
        let columns = Columns::from(reader);
        let own = headers::own(reader);
        let outbox = outbox?;
        let options = EnvelopeOptions {
            envelope: (&Outbox::envelope, outbox.envelope),
            source: (&Outbox::cloudevents_source, outbox.cloudevents_source.as_deref()),
        };
        let headers = headers::all(own, options, reader);
        if WRITERS_CHOOSE.contains(&outbox.topic.to_string().as_str()) {
            let message = format!(
                "[outbox] topic is \"{}\", so anyone who can insert events can write to any topic",
                outbox.topic
            );
            let help = "add a fixed prefix, such as \"events.{aggregate_type}\", or limit the relay's Kafka user to some topics";
            reader.warn(&Outbox::topic, Problem::new(message, help));
        }
        let table = outbox.table.clone().with_columns(columns);
        Some(Outbox { table, headers, ..outbox })
    }
}

/// The configuration requires the column `topic` if it allows topics.
impl From<&Outbox> for TopicRules {
    fn from(outbox: &Outbox) -> TopicRules {
        let allow = outbox.topic_allow.clone();
        TopicRules { template: outbox.topic.clone(), column: allow.is_some(), allow }
    }
}

impl Relay {
    fn check(&self, reader: &mut Reader) {
        if self.shutdown_timeout < self.publish_timeout {
            let message = "shutdown_timeout is shorter than publish_timeout, so a shutdown while Kafka is slow redelivers events";
            let help = "increase shutdown_timeout or decrease publish_timeout";
            reader.warn(&Relay::shutdown_timeout, Problem::new(message, help));
        }
        if self.takeover_timeout < TAKEOVER_TIMEOUT_LEAST {
            let message =
                "takeover_timeout is so short that events are redelivered when a relay freezes only briefly";
            let help = "set it to 3s or more; the default is 10s";
            reader.warn(&Relay::takeover_timeout, Problem::new(message, help));
        }
        if let Some(problem) = self.memory_problem() {
            reader.error(&Relay::batch_bytes, problem);
        }
        for (name, entry) in reader.entries.table("kafka.properties") {
            let Some(text) = entry.raw.text() else { continue };
            if let Some(problem) = self.property_problem(&name, &text) {
                reader.findings.error(&entry.place, problem);
            }
            // The relay learns of quotas only from the client's statistics.
            let hides_quotas = |interval: f64| !(1.0..=10_000.0).contains(&interval);
            if &*name == "statistics.interval.ms" && text.trim().parse().is_ok_and(hides_quotas) {
                let message =
                    format!("{name} is {text}, so the relay does not notice quotas of Kafka in time");
                let help = "set it to a number from 1 to 10000, or remove it: the default is suitable";
                reader.findings.warn(&entry.place, Problem::new(message, help));
            }
        }
    }

    fn memory_problem(&self) -> Option<Problem> {
        let bytes = self.batch_bytes.as_u64() * self.workers as u64;
        if bytes <= BATCHES_MOST {
            return None;
        }
        let (bytes, most) = (ByteSize::bytes(bytes), ByteSize::bytes(BATCHES_MOST));
        let message = format!("workers times batch_bytes is {bytes}, but must be at most {most}");
        Some(Problem::new(message, "decrease one of them: the relay needs about twice this much memory"))
    }

    /// A property of librdkafka with which nothing would be sent before the timeout, or no request could succeed.
    fn property_problem(&self, name: &str, text: &str) -> Option<Problem> {
        let value = text.trim().parse::<f64>().ok()?;
        let limit = if WAITS.contains(&name) && value >= self.publish_timeout.as_millis() as f64 {
            let timeout = format_duration(self.publish_timeout);
            format!("below [relay] publish_timeout ({timeout}), or nothing is sent in time")
        } else if REQUESTS.contains(&name) && value < REQUEST_LEAST_MS {
            format!("at least {REQUEST_LEAST_MS}, or no request succeeds in time")
        } else {
            return None;
        };
        let message = format!("Kafka property `{name}` is {value} (milliseconds), but must be {limit}");
        Some(Problem::new(message, "remove it: the default is suitable"))
    }
}

impl Admin {
    fn warn(&self, reader: &mut Reader) {
        if self.listen.is_some_and(|address| !address.ip().is_loopback()) {
            let message = "[admin] listen is open to other hosts, without authentication or TLS";
            let help =
                "listen on 127.0.0.1 or [::1], or allow only your monitoring and probes to access the port";
            reader.warn(&Admin::listen, Problem::new(message, help));
        }
    }
}

/// An address, or `None` for "off".
fn listen_address(text: &str, setting: &Setting, reader: &Reader) -> Result<Option<SocketAddr>, Problem> {
    if ["", "off"].contains(&text) { Ok(None) } else { Value::from_text(text, setting, reader) }
}

fn topic_allow(text: &str, setting: &Setting, reader: &Reader) -> Result<Option<TopicAllow>, Problem> {
    if text.is_empty() { Ok(None) } else { Value::from_text(text, setting, reader) }
}

/// A word alone must be a level: `EnvFilter` would accept a mistyped level as the name of a module, and log nothing.
fn log_filter(text: &str, setting: &Setting, _: &Reader) -> Result<String, Problem> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    for directive in text.split(',').map(str::trim) {
        let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level);
        let spans = directive.contains('[');
        if !spans && !LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)) {
            let help = match nearest(level, LEVELS) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("the levels are {}", LEVELS.join(", ")),
            };
            return Err(Problem::new(format!("{setting}: {level:?} is not a level"), help));
        }
    }
    match tracing_subscriber::EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => {
            Err(Problem::new(format!("{setting}: {error}"), "for example \"info,outbox_relay=debug\""))
        }
    }
}

#[cfg(test)]
mod tests;
