//! Finds out what exists, and every fault that can be found before the first change. Changes nothing.

use super::plan::{self, ConfigFileState, PASSWORD_FILE, Password, Plan, SECRET_MODE};
use super::{Init, Wanted, unusable};
use crate::cli::failed::{Failed, not_probed};
use crate::cli::frame::database;
use crate::config::{self, Config, Secret, environment};
use anyhow::{Context, Error};
use deadpool_postgres::Object;
use kafka::operate::topics::{Mode, Topics};
use postgres::access::roles::{self, NewRoles};
use postgres::connection::errors::ServerError;
use postgres::connection::exec::{check_settings, open};
use postgres::schema::check::server_faults;
use postgres::schema::errors::CheckError;
use postgres::schema::migrate;
use relay::failure::{FailureKind, KafkaFailure};
use relay::publisher::Publisher;
use settings::text::percent_encode;
use std::path::Path;
use tokio_postgres::Client;

/// More than enough for a random password.
const PASSWORD_BYTES: usize = 24;

pub(super) struct Servers {
    pub(super) connection: Object,
    /// If topics are wanted.
    pub(super) topics: Option<Topics>,
}

pub(super) async fn inspect(wanted: &Wanted) -> Result<(Plan<'_>, Servers), Failed> {
    let Wanted { file, args: Init { table, role, with_stats, topics, .. }, .. } = wanted;
    plan::check_writable(plan::folder(file))?;
    let config = plan::config_state(file)?;
    let password_file = plan::password_file(file);
    let password = plan::existing_password(&password_file)?;
    let relay_url = wanted.owner.of_role(role.relay());
    let of_relay = settings(wanted, &relay_url, None)?;
    let kept = if config == ConfigFileState::Existing { compare(file, &of_relay)? } else { of_relay };
    check_topics(&kept, topics)?;
    let of_owner = wanted.owner_password.as_ref().map(|password| ("password", password.expose()));
    let of_owner = settings(wanted, &wanted.owner.text, of_owner)?;

    let mut connection = connect(wanted, &of_owner).await?;
    let transaction = open(&mut connection, true, &check_settings()).await.map_err(server)?;
    check_server(transaction.client()).await?;
    let migrations = migrate::read_status(&transaction, table, migrate::Series::Outbox).await?;
    let grant = roles::missing_grant(&transaction, table).await.map_err(server)?;
    let existing_roles = roles::existing(&transaction, role).await.map_err(server)?;
    transaction.rollback().await.map_err(server)?;
    let role_exists = existing_roles.iter().any(|name| name == role.relay());
    let password = decide(wanted, config, password, role_exists)?;
    let secret = match &password {
        Password::Generated(secret) | Password::Kept(secret) if !role_exists => Some(secret),
        _ => None,
    };
    let roles = NewRoles::new(table, role, secret, *with_stats);
    let mut plan = Plan {
        wanted,
        config,
        config_text: wanted.config_text(&relay_url, Some(("password_file", PASSWORD_FILE))),
        password,
        password_file,
        migrations,
        existing_roles,
        roles,
        topics: Vec::new(),
    };
    if plan.grants() {
        migrate::dry_run_with(&mut connection, table, &plan.roles.sql, &grant).await?;
    }
    let topics = inspect_topics(wanted, &of_owner, &mut plan).await?;
    Ok((plan, Servers { connection, topics }))
}

/// The configuration as it will be read. The variables of `[postgres]` are for another role.
fn settings(wanted: &Wanted, url: &str, password: Option<(&str, &str)>) -> Result<Config, Failed> {
    let text = wanted.config_text(url, password);
    config::load_text(&wanted.file, &text, variables()).map_err(|findings| {
        let errors = findings.iter().filter(|finding| finding.severity == config::Severity::Error);
        let texts: Vec<_> = errors
            .map(|error| match error.help.as_str() {
                "" => error.message.clone(),
                question if question.ends_with('?') => format!("{}: {question}", error.message),
                help => format!("{}. Fix: {help}", error.message),
            })
            .collect();
        unusable(&texts.join("\n"))
    })
}

/// The variables of `[postgres]` are for other commands, such as `migrate`.
pub(super) fn variables() -> impl Iterator<Item = (String, String)> {
    environment().filter(|(name, _)| !name.starts_with("OUTBOX_RELAY__POSTGRES__"))
}

/// Checks that an existing configuration is for the same outbox, so that it can be kept. Returns it.
fn compare(file: &Path, wanted: &Config) -> Result<Config, Failed> {
    let existing = config::load(Some(file), variables()).map_err(|findings| {
        Failed::configuration(format!(
            "{} exists, but is invalid. `init` does not overwrite it, and nothing was changed. Fix: correct it, or name \
             another file with --config.\n{findings}",
            file.display()
        ))
    })?;
    let server = |config: &Config| {
        let config = config.postgres.connection().ok()?.config;
        let (database, user) = (config.get_dbname().map(str::to_owned), config.get_user().map(str::to_owned));
        Some((config.get_hosts().to_vec(), config.get_ports().to_vec(), database, user))
    };
    let (found, expected) = (server(&existing), server(wanted));
    let comparisons = [
        ("database or role", found.is_none() || found != expected),
        ("brokers", existing.kafka.bootstrap_servers != wanted.kafka.bootstrap_servers),
        ("table", existing.outbox.table != wanted.outbox.table),
    ];
    let different: Vec<_> =
        comparisons.into_iter().filter_map(|(what, differs)| differs.then_some(what)).collect();
    if different.is_empty() {
        return Ok(existing);
    }
    Err(unusable(&format!(
        "{} exists, but has different settings ({}). `init` does not overwrite it. Fix: name another file with \
         --config, or rename this one",
        file.display(),
        different.join(", ")
    )))
}

/// Checks that events can belong to each of these topics.
fn check_topics(config: &Config, topics: &[String]) -> Result<(), Failed> {
    let template = &config.outbox.topic;
    // With `topic_allow`, an event can name any of its topics.
    match topics.iter().find(|topic| config.outbox.topic_allow.is_none() && !template.matches(topic)) {
        None => Ok(()),
        Some(topic) => Err(unusable(&format!(
            "No event would reach the topic {topic}, because [outbox] topic is \"{template}\". Fix: choose topics of one \
             form, such as shop.order and shop.invoice, or create this topic with kafka-topics.sh"
        ))),
    }
}

async fn connect(wanted: &Wanted, config: &Config) -> Result<Object, Failed> {
    let connected = database(config, 1)?.get().await;
    connected.map_err(|fault| {
        let text = fault.to_string();
        let what = text.split(". Fix: ").next().unwrap_or_default();
        let text = match wanted.owner_password {
            // The reader has no configuration yet.
            _ if what.contains("database \"") && what.contains("does not exist") => {
                format!("{what}. Fix: create it with createdb, or pass another URL with --database")
            }
            None if text.contains("password") => {
                format!("{text}. If the role needs a password, set the environment variable PGPASSWORD")
            }
            _ => text,
        };
        Failed::unavailable(format!("{text}. Nothing was changed."))
    })
}

async fn check_server(connection: &Client) -> Result<(), Failed> {
    let faults = server_faults(connection).await.map_err(|error| match error {
        CheckError::Server(error) => server(error),
        faults => Failed::Configuration(faults.into()),
    })?;
    if faults.is_empty() { Ok(()) } else { Err(Failed::Configuration(CheckError::Faults(faults).into())) }
}

fn server(error: impl Into<ServerError>) -> Failed {
    let error = error.into();
    let failed = if error.is_connection_lost() { Failed::Unavailable } else { Failed::Failure };
    failed(Error::new(error).context("Cannot examine the database, so nothing was changed"))
}

/// The password that the relay will use. An existing role keeps its password, which must then be known.
fn decide(
    wanted: &Wanted,
    config: ConfigFileState,
    found: Option<Secret>,
    role_exists: bool,
) -> Result<Password, Failed> {
    let (role, file) = (&wanted.args.role, plan::password_file(&wanted.file));
    match (found, role_exists, config) {
        (Some(password), ..) => Ok(Password::Kept(password)),
        (None, true, ConfigFileState::Existing) => Ok(Password::Unknown),
        (None, true, _) => Err(unusable(&format!(
            "The role {role} exists, but {} does not, and `init` does not change the password of an existing role. \
             Fix: write its password to that file, with mode {SECRET_MODE:o}, or create another role with --role NAME",
            file.display()
        ))),
        (None, false, ConfigFileState::Existing) => Err(unusable(&format!(
            "{} exists, but neither the role {role} nor {} does. Fix: rename the configuration file, so that `init` \
             writes a new one with a new password",
            wanted.file.display(),
            file.display()
        ))),
        (None, false, _) => Ok(Password::Generated(generate()?)),
    }
}

fn generate() -> Result<Secret, Failed> {
    let mut bytes = [0; PASSWORD_BYTES];
    openssl::rand::rand_bytes(&mut bytes).context("generating a password")?;
    Ok(Secret::new(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
}

/// Checks that the brokers answer, and that they would create the missing topics.
async fn inspect_topics(
    wanted: &Wanted,
    config: &Config,
    plan: &mut Plan<'_>,
) -> Result<Option<Topics>, Failed> {
    let cluster = config.cluster()?;
    cluster.check_settings()?;
    cluster.probe().await.map_err(not_probed)?;
    if wanted.args.topics.is_empty() {
        return Ok(None);
    }
    let topics = Topics::new(&config.kafka, &cluster).await?;
    for topic in &wanted.args.topics {
        let exists = topics.has(topic).await?;
        if !exists {
            topics.create(topic, wanted.shape, Mode::Validate).await.map_err(topic_failed)?;
        }
        plan.topics.push((topic.clone(), exists));
    }
    Ok(Some(topics))
}

/// A topic that the brokers do not create is not an outage, unless the whole cluster is unavailable.
pub(super) fn topic_failed(failure: KafkaFailure) -> Failed {
    match failure.kind {
        FailureKind::Cluster => failure.into(),
        _ => Failed::configuration(format!(
            "Kafka refused a topic: {failure}. Fix: choose another value for --partitions or --replication-factor, or create the \
             topic with kafka-topics.sh and omit it from --topic"
        )),
    }
}

/// A URL such as `postgres://postgres@localhost/app`, without a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnerUrl {
    /// As given.
    pub(super) text: String,
    scheme: String,
    /// Everything after the role.
    rest: String,
}

const SCHEMES: [&str; 2] = ["postgres", "postgresql"];

/// Parameters of the owner that the relay's URL must not contain, or that the relay's URL sets elsewhere.
const REFUSED: [(&str, &str); 6] = [
    ("user", "write the role before the host, as in postgres://ROLE@HOST/DATABASE"),
    ("password", PASSWORD),
    ("dbname", "write the database after the host, as in postgres://ROLE@HOST/DATABASE"),
    ("sslcert", CERTIFICATE),
    ("sslkey", CERTIFICATE),
    ("sslpassword", CERTIFICATE),
];
const PASSWORD: &str = "remove the password, and set the environment variable PGPASSWORD. Other users can see the \
                        arguments of a command";
const CERTIFICATE: &str = "create the tables and roles with `outbox-relay migrate`, because the relay needs a client \
                           certificate of its own";

impl OwnerUrl {
    /// Parses what `init` needs to know. The configuration checks everything else.
    ///
    /// # Errors
    ///
    /// The problem and a remedy, as two sentences. The text is not quoted.
    pub(super) fn parse(text: &str) -> Result<OwnerUrl, String> {
        let (scheme, after) = text.split_once("://").filter(|(scheme, _)| SCHEMES.contains(scheme)).ok_or(
            "The database URL does not start with postgres://. Fix: write it as postgres://ROLE@HOST/DATABASE",
        )?;
        let (authority, path) = after.split_at(after.find(['/', '?', '#']).unwrap_or(after.len()));
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        if user.contains(':') {
            return Err(format!("The database URL contains a password. Fix: {PASSWORD}"));
        }
        let (name, parameters) = path.split_once('?').unwrap_or((path, ""));
        if name.trim_start_matches('/').is_empty() {
            return Err("The database URL names no database. Fix: write it as postgres://ROLE@HOST/DATABASE"
                .to_owned());
        }
        for key in parameters.split('&').map(|parameter| parameter.split('=').next().unwrap_or_default()) {
            if let Some((key, fix)) = REFUSED.iter().find(|(refused, _)| *refused == key) {
                return Err(format!("The database URL contains the parameter {key}. Fix: {fix}"));
            }
        }
        Ok(OwnerUrl { text: text.to_owned(), scheme: scheme.to_owned(), rest: format!("{host}{path}") })
    }

    pub(super) fn of_role(&self, role: &str) -> String {
        let OwnerUrl { scheme, rest, .. } = self;
        format!("{scheme}://{}@{rest}", percent_encode(role, "-._~"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_the_relay_differs_only_in_the_role() {
        for (owner, relay) in [
            ("postgres://postgres@localhost/app", "postgres://the%20relay@localhost/app"),
            (
                "postgresql://h1:5432,h2/app?sslmode=require",
                "postgresql://the%20relay@h1:5432,h2/app?sslmode=require",
            ),
            (
                "postgres://alice@/app?host=/run/postgresql",
                "postgres://the%20relay@/app?host=/run/postgresql",
            ),
            ("postgres:///app?host=/run/postgresql", "postgres://the%20relay@/app?host=/run/postgresql"),
        ] {
            let url = OwnerUrl::parse(owner).unwrap();
            assert_eq!((url.text.as_str(), url.of_role("the relay").as_str()), (owner, relay));
        }
        let own = "postgres://a%20b@h/app";
        assert_eq!(OwnerUrl::parse(own).unwrap().of_role("a b"), own);
        assert_eq!(OwnerUrl::parse("postgres://h/app").unwrap().of_role("h"), "postgres://h@h/app");
    }

    #[test]
    fn a_url_that_cannot_be_used_is_refused_without_quoting_it() {
        for (url, reason) in [
            ("host=localhost password=hunter2", "does not start with postgres://"),
            ("", "does not start with postgres://"),
            ("postgres://postgres:hunter2@localhost/app", "contains a password. Fix: remove the password"),
            ("postgres://localhost/app?password=hunter2", "parameter password. Fix: remove the password"),
            ("postgres://localhost/app?user=hunter2", "parameter user."),
            ("postgres://localhost/app?a=b&sslkey=hunter2", "parameter sslkey."),
            ("postgres://hunter2@localhost", "names no database"),
            ("postgres://hunter2@localhost/?host=x", "names no database"),
        ] {
            let error = OwnerUrl::parse(url).unwrap_err();
            assert!(
                error.contains(reason) && error.contains(" Fix: ") && !error.contains("hunter2"),
                "{error}"
            );
        }
    }
}
