//! Finds out what exists, and every fault that can be found before the first change. Changes nothing.

use super::files::{self, ConfigFileState};
use super::plan::{Password, Plan};
use super::{Wanted, unusable};
use crate::cli::exit::Failed;
use crate::cli::migrate::failed;
use crate::cli::one_shot;
use crate::config::{self, Config, Draft, DraftPassword, Secret, environment};
use deadpool_postgres::Object;
use kafka::operate::new_topic::{Mode, Topics};
use postgres::access::new_roles::{self, Creator, NewRoles};
use postgres::connection::server_error::ServerError;
use postgres::connection::session::check_settings;
use postgres::connection::transaction::open;
use postgres::schema::check::{CheckError, server_faults};
use postgres::schema::migrate;
use relay::failure::{FailureKind, KafkaFailure};
use relay::publisher::Publisher;
use std::path::Path;
use tokio_postgres::Client;

/// More than enough for a random password.
const PASSWORD_BYTES: usize = 24;

/// The connections to both servers.
pub(super) struct Servers {
    pub(super) connection: Object,
    /// If topics are wanted.
    pub(super) topics: Option<Topics>,
}

pub(super) async fn inspect(wanted: &Wanted) -> Result<(Plan<'_>, Servers), Failed> {
    let Wanted { file, table, role, .. } = wanted;
    files::check_writable(files::folder(file))?;
    let config = files::config_state(file)?;
    let password_file = files::password_file(file);
    let password = files::existing_password(&password_file)?;
    let relay_url = wanted.owner.of_role(role.relay());
    let of_relay = settings(wanted, &relay_url, DraftPassword::None)?;
    match config {
        ConfigFileState::Existing => check_topics(&compare(file, &of_relay)?, &wanted.topics)?,
        ConfigFileState::Missing | ConfigFileState::Packaged => check_topics(&of_relay, &wanted.topics)?,
    }
    let of_owner = wanted.owner_password.as_ref().map_or(DraftPassword::None, DraftPassword::Inline);
    let of_owner = settings(wanted, wanted.owner.text(), of_owner)?;

    let mut connection = connect(wanted, &of_owner).await?;
    let transaction = open(&mut connection, true, &check_settings()).await;
    let transaction = transaction.map_err(|error| server(error.into()))?;
    check_server(transaction.client()).await?;
    let migrations = migrate::read_status(&transaction, table).await.map_err(|error| failed(&error))?;
    let creator = Creator::read(&transaction).await.map_err(server)?;
    let existing_roles = new_roles::existing(&transaction, role).await.map_err(server)?;
    transaction.rollback().await.map_err(|error| server(error.into()))?;
    let role_exists = existing_roles.iter().any(|name| name == role.relay());
    let password = decide(wanted, config, password, role_exists)?;
    let secret = password.secret().filter(|_| !role_exists);
    let roles = NewRoles::new(table, role, secret, wanted.sessions);
    let draft = draft(wanted, &relay_url, DraftPassword::File(files::PASSWORD_FILE));
    let mut plan = Plan {
        wanted,
        config,
        config_text: draft.text(),
        password,
        password_file,
        migrations,
        existing_roles,
        roles,
        topics: Vec::new(),
    };
    if plan.grants() {
        let grant = || creator.missing_grant(table);
        let rehearsed = migrate::dry_run_with(&mut connection, table, plan.roles.sql(), grant).await;
        rehearsed.map_err(|error| failed(&error))?;
    }
    let topics = inspect_topics(wanted, &of_owner, &mut plan).await?;
    Ok((plan, Servers { connection, topics }))
}

/// The settings of the configuration that `init` writes.
fn draft<'a>(wanted: &'a Wanted, url: &'a str, password: DraftPassword<'a>) -> Draft<'a> {
    let Wanted { brokers, properties, table, template, .. } = wanted;
    Draft { url, password, brokers, properties, table, topic: template }
}

/// The configuration as it will be read. The variables of `[postgres]` are for another role.
fn settings(wanted: &Wanted, url: &str, password: DraftPassword<'_>) -> Result<Config, Failed> {
    let text = draft(wanted, url, password).text();
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

fn variables() -> impl Iterator<Item = (String, String)> {
    environment().filter(|(name, _)| !name.starts_with("OUTBOX_RELAY__POSTGRES__"))
}

/// Checks that an existing configuration is for the same outbox, so that it can be kept. Returns it.
fn compare(file: &Path, wanted: &Config) -> Result<Config, Failed> {
    let existing = config::load(Some(file), variables()).map_err(|findings| {
        Failed::Configuration(anyhow::anyhow!(
            "{} exists, but is invalid. `init` does not overwrite it, and nothing was changed. Fix: correct it, or name \
             another file with --config.\n{findings}",
            file.display()
        ))
    })?;
    let mut different = Vec::new();
    match (existing.postgres.connection(), wanted.postgres.connection()) {
        (Ok(one), Ok(other)) => {
            let (one, other) = (one.config, other.config);
            let same_server = one.get_hosts() == other.get_hosts() && one.get_ports() == other.get_ports();
            if !same_server || one.get_dbname() != other.get_dbname() || one.get_user() != other.get_user() {
                different.push("database or role");
            }
        }
        _ => different.push("database or role"),
    }
    if existing.kafka.bootstrap_servers != wanted.kafka.bootstrap_servers {
        different.push("brokers");
    }
    if existing.outbox.table != wanted.outbox.table {
        different.push("table");
    }
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
    let (prefix, suffix) = (template.prefix(), template.suffix());
    let is_reached = |topic: &String| match template.is_constant() {
        true => topic == prefix,
        false => {
            let rest = topic.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(suffix));
            rest.is_some_and(|rest| !rest.is_empty())
        }
    };
    // With `topic_allow`, an event can name any of its topics.
    match topics.iter().find(|topic| config.outbox.topic_allow.is_none() && !is_reached(topic)) {
        None => Ok(()),
        Some(topic) => Err(unusable(&format!(
            "No event would reach the topic {topic}, because [outbox] topic is \"{template}\". Fix: choose topics of one \
             form, such as shop.order and shop.invoice, or create this topic with kafka-topics.sh"
        ))),
    }
}

async fn connect(wanted: &Wanted, config: &Config) -> Result<Object, Failed> {
    let connected = one_shot::database(config)?.get().await;
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
        Failed::Unavailable(anyhow::anyhow!("{text}. Nothing was changed."))
    })
}

async fn check_server(connection: &Client) -> Result<(), Failed> {
    let faults = server_faults(connection).await.map_err(|error| match error {
        CheckError::Server(error) => server(error),
        faults @ CheckError::Faults(_) => Failed::Configuration(faults.into()),
    })?;
    if faults.is_empty() { Ok(()) } else { Err(Failed::Configuration(CheckError::Faults(faults).into())) }
}

fn server(error: ServerError) -> Failed {
    let failed = anyhow::Error::new(error).context("Cannot examine the database, so nothing was changed");
    Failed::Failure(failed)
}

/// The password that the relay will use. An existing role keeps its password, which must then be known.
fn decide(
    wanted: &Wanted,
    config: ConfigFileState,
    found: Option<Secret>,
    role_exists: bool,
) -> Result<Password, Failed> {
    let (role, file) = (&wanted.role, files::password_file(&wanted.file));
    match (found, role_exists, config) {
        (Some(password), ..) => Ok(Password::Kept(password)),
        (None, true, ConfigFileState::Existing) => Ok(Password::Unknown),
        (None, true, _) => Err(unusable(&format!(
            "The role {role} exists, but {} does not, and `init` does not change the password of an existing role. \
             Fix: write its password to that file, with mode {:o}, or create another role with --role NAME",
            file.display(),
            files::SECRET_MODE
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
    openssl::rand::rand_bytes(&mut bytes)
        .map_err(|error| Failed::Failure(anyhow::Error::new(error).context("generating a password")))?;
    Ok(Secret::new(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
}

/// Checks that the brokers answer, and that they would create the missing topics.
async fn inspect_topics(
    wanted: &Wanted,
    config: &Config,
    plan: &mut Plan<'_>,
) -> Result<Option<Topics>, Failed> {
    let kafka = |failure| one_shot::kafka(&failure);
    let cluster = config.cluster().map_err(kafka)?;
    cluster.check_settings().map_err(kafka)?;
    cluster.probe().await.map_err(kafka)?;
    if wanted.topics.is_empty() {
        return Ok(None);
    }
    let topics = Topics::new(&config.kafka, &cluster).await.map_err(kafka)?;
    for topic in &wanted.topics {
        let exists = topics.has(topic).await.map_err(kafka)?;
        if !exists {
            topics
                .create(topic, wanted.shape, Mode::Validate)
                .await
                .map_err(|failure| topic_failed(&failure))?;
        }
        plan.topics.push((topic.clone(), exists));
    }
    Ok(Some(topics))
}

/// A topic that the brokers do not create is not an outage, unless the whole cluster is unavailable.
pub(super) fn topic_failed(failure: &KafkaFailure) -> Failed {
    match failure.kind {
        FailureKind::Cluster => one_shot::kafka(failure),
        _ => Failed::Configuration(anyhow::anyhow!(
            "Kafka refused a topic: {failure}. Fix: choose another value for --partitions or --replication-factor, \
             or create \
             the topic with kafka-topics.sh and omit it from --topic"
        )),
    }
}
