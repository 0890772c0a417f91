//! `outbox-relay init`: creates the tables, the roles, the topics and the configuration of a new outbox.
//!
//! Every fault that can be found in advance is found before the first change: `inspect` rehearses the SQL in a transaction
//! that it rolls back, and asks the brokers whether they would create the topics. If a later step fails, the next run keeps
//! what exists and continues. The configuration is written last, so a file that exists belongs to a complete outbox.

mod apply;
mod files;
mod inspect;
mod next;
mod owner;
mod plan;

use super::exit::Failed;
use super::terminal::{ask, output};
use super::{ConfigFile, block_on, check_config, load};
use crate::config::properties::is_secret;
use crate::config::{Secret, TableName};
use clap::Args;
use kafka::operate::topics::Shape;
use owner::OwnerUrl;
use pg_outbox::topic::check_topic;
use postgres::access::roles::{RelayRole, Sessions};
use std::path::PathBuf;

const DATABASE: &str = "postgres://postgres@localhost/app";
const BROKERS: &str = "localhost:9092";
/// The answer that means no topics.
const NONE: &str = "none";

/// Create the tables, roles and configuration of a new outbox.
#[derive(Debug, Args)]
#[command(mut_arg("config", |config| config.help("Configuration file to write [default: /etc/outbox-relay/config.toml]")))]
#[command(after_help = "\
Shows the SQL, the files and the plan first, then asks for confirmation. With --yes, it shows only the plan. Also asks for the URL, the brokers and the topics, \
if they are not given. Checks the database, the privileges, the brokers and the files before the first change.

Creates the tables (see `migrate`), the roles (see `migrate --print-roles`), the topics and the configuration. \
Generates a password for the relay, and writes it to the file postgres-password next to the configuration. Only the \
owner of the file can read it. Then runs \
`check-config --connect`, and prints the next commands.

An existing table, role, topic or file is kept and reported. Only the configuration file of the package is replaced, \
and only if it is unchanged. You can run the command again, even after an interruption.

The password of the --database role is read from PGPASSWORD or the terminal. The generated password is never shown, \
and PostgreSQL \
receives only its SCRAM-SHA-256 verifier.

Examples:
  outbox-relay init
  outbox-relay init --config config.toml --database postgres://postgres@localhost/app \\
      --brokers localhost:9092 --dry-run
  outbox-relay init --yes --config config.toml --database postgres://postgres@localhost/app \\
      --brokers localhost:9092 --topic events.order

Exit codes: 0 success, 1 failure, 2 usage error, 69 PostgreSQL or Kafka unreachable, 78 a setting, a file or the database \
cannot be used, or privileges are missing.")]
pub(crate) struct Init {
    #[command(flatten)]
    config: ConfigFile,
    /// Database URL of a role that may create tables and roles, without its password.
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// Kafka brokers as host:port, separated by commas.
    #[arg(long)]
    brokers: Option<String>,
    /// librdkafka property for the configuration, such as security.protocol=ssl. You can repeat the option. For a
    /// password, name a file: sasl.password_file=kafka-password.
    #[arg(long = "kafka-property", value_name = "NAME=VALUE")]
    properties: Vec<String>,
    /// Outbox table.
    #[arg(long, default_value = "public.outbox")]
    table: TableName,
    /// Role of the relay. The other roles are named after it.
    #[arg(long, value_name = "NAME", default_value = "outbox_relay")]
    role: RelayRole,
    /// Also show operators and monitoring all sessions of the server, with their statements (pg_read_all_stats).
    #[arg(long)]
    with_stats: bool,
    /// Topics to create, separated by commas. In a new configuration, the last part of their names is the aggregate type.
    #[arg(long = "topic", value_name = "TOPICS", value_delimiter = ',', value_parser = topic)]
    topics: Vec<String>,
    /// Partitions of each new topic.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=10_000))]
    partitions: i32,
    /// Replication factor of each new topic [default: that of the brokers].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=i64::from(i16::MAX)))]
    replication_factor: Option<i32>,
    /// Do not ask for confirmation or for missing settings.
    #[arg(long)]
    yes: bool,
    /// Print the plan without changing anything.
    #[arg(long)]
    dry_run: bool,
}

/// What the user wants.
struct Wanted {
    /// The configuration file.
    file: PathBuf,
    owner: OwnerUrl,
    owner_password: Option<Secret>,
    brokers: String,
    properties: Vec<(String, String)>,
    table: TableName,
    role: RelayRole,
    sessions: Sessions,
    topics: Vec<String>,
    /// The template in `[outbox] topic` of a new configuration.
    template: String,
    shape: Shape,
}

impl Init {
    pub(crate) fn run(self) -> Result<(), Failed> {
        let (yes, dry_run) = (self.yes, self.dry_run);
        let wanted = self.wanted()?;
        if !block_on(prepare(&wanted, yes, dry_run))?? {
            return Ok(());
        }
        let config = load(Some(&wanted.file))?;
        check_config::check(&config, &wanted.file.display().to_string(), true, &wanted.topics)?;
        output::print(next::commands(&wanted, &config).as_bytes()).map(|_| ())
    }

    /// The arguments, and answers for those that are missing.
    fn wanted(self) -> Result<Wanted, Failed> {
        let asks = !self.yes && ask::can_ask();
        if !asks && !self.yes && !self.dry_run {
            let text = "stdin is not a terminal, so the command cannot ask for confirmation. Pass --yes, or --dry-run";
            return Err(Failed::Usage(text.to_owned()));
        }
        let or_ask = |given: Option<String>, option: &str, question: &str, example: &str| match given {
            Some(given) => Ok(given),
            None if asks => ask::ask(question, Some(example)),
            None => Err(Failed::Usage(format!("{option} is missing, for example {option} {example}"))),
        };
        let file = self.config.target()?;
        // Not a clap parser, because its errors would quote a secret.
        let properties: Result<_, _> = self.properties.iter().map(|text| property(text)).collect();
        let properties = properties.map_err(|error| Failed::Usage(format!("--kafka-property: {error}")))?;
        let url = or_ask(
            self.database,
            "--database",
            "Database URL of a role that may create tables and roles",
            DATABASE,
        )?;
        let owner = OwnerUrl::parse(&url).map_err(|problem| unusable(&problem))?;
        if owner.is_of(self.role.relay()) {
            return Err(unusable(&format!(
                "{} is the relay's own role, which must not own the tables. Fix: use the URL of a role that may \
                 create \
                 tables and roles",
                self.role
            )));
        }
        let owner_password = match owner::password_of_environment() {
            None if asks => ask::password("Password of that role (empty for none)")?,
            given => given,
        };
        let brokers = or_ask(self.brokers, "--brokers", "Kafka brokers", BROKERS)?;
        let topics = if self.topics.is_empty() && asks {
            asked_topics(&ask::ask("Topics to create, such as events.order", Some(NONE))?)?
        } else {
            self.topics
        };
        let template = template(&topics);
        let shape = Shape { partitions: self.partitions, replicas: self.replication_factor };
        let sessions = if self.with_stats { Sessions::All } else { Sessions::Own };
        let Init { table, role, .. } = self;
        Ok(Wanted {
            file,
            owner,
            owner_password,
            brokers,
            properties,
            table,
            role,
            sessions,
            topics,
            template,
            shape,
        })
    }
}

/// Shows the plan and carries it out. Returns false if nothing was to be changed.
async fn prepare(wanted: &Wanted, yes: bool, dry_run: bool) -> Result<bool, Failed> {
    let (plan, mut servers) = inspect::inspect(wanted).await?;
    let shown = if yes && !dry_run { plan.summary() } else { plan.to_string() };
    output::print(shown.as_bytes())?;
    if dry_run {
        return Ok(false);
    }
    if !yes && plan.changes_something() && !ask::confirm("Continue?")? {
        return Err(Failed::Failure(anyhow::anyhow!("Canceled. Nothing was changed.")));
    }
    apply::apply(&plan, &mut servers).await?;
    Ok(true)
}

fn unusable(text: &str) -> Failed {
    let stop = if text.ends_with('?') { "" } else { "." };
    Failed::Configuration(anyhow::anyhow!("{text}{stop} Nothing was changed."))
}

fn asked_topics(answer: &str) -> Result<Vec<String>, Failed> {
    if answer == NONE {
        return Ok(Vec::new());
    }
    answer.split(',').map(|name| topic(name.trim()).map_err(Failed::Usage)).collect()
}

/// The template of the first topic: its last part is the aggregate type. `inspect` checks the other topics.
fn template(topics: &[String]) -> String {
    let prefix = topics.first().map_or("events.", |topic| match topic.rfind('.') {
        Some(dot) => &topic[..=dot],
        None => "",
    });
    format!("{prefix}{{aggregate_type}}")
}

fn topic(name: &str) -> Result<String, String> {
    check_topic(name).map(|()| name.to_owned()).map_err(|error| error.to_string())
}

fn property(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, _)) if is_secret(name.trim()) => Err(format!(
            "other users can see the arguments of a command. Write the secret to a file, and pass {}_file=NAME",
            name.trim()
        )),
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_owned(), value.to_owned())),
        _ => Err("write it as NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_names_and_values_without_secrets() {
        assert_eq!(property("a.b = c=d"), Ok(("a.b".to_owned(), " c=d".to_owned())));
        for text in ["a.b", "=c"] {
            assert_eq!(property(text), Err("write it as NAME=VALUE".to_owned()));
        }
        let error = property("sasl.password=hunter2").unwrap_err();
        assert!(error.contains("pass sasl.password_file=NAME") && !error.contains("hunter2"), "{error}");
        assert!(property("sasl.password_file=kafka-password").is_ok());
    }

    #[test]
    fn the_template_has_the_prefix_of_the_topics() {
        for (topics, expected) in [
            ("none", "events.{aggregate_type}"),
            ("events.order", "events.{aggregate_type}"),
            ("shop.eu.order,shop.eu.invoice", "shop.eu.{aggregate_type}"),
            ("orders", "{aggregate_type}"),
        ] {
            assert_eq!(template(&asked_topics(topics).unwrap()), expected, "{topics}");
        }
    }

    #[test]
    fn topics_are_checked() {
        assert_eq!(asked_topics(NONE).unwrap(), [""; 0]);
        assert_eq!(asked_topics("a, b.c").unwrap(), ["a", "b.c"]);
        assert!(asked_topics("a b").is_err());
    }
}
