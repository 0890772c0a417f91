//! `outbox-relay init`: creates the tables, the roles, the topics and the configuration of a new outbox.
//!
//! Every fault that can be found in advance is found before the first change: `inspect` rehearses the SQL in a transaction
//! that it rolls back, and asks the brokers whether they would create the topics. If a later step fails, the next run keeps
//! what exists and continues. The configuration is written last, so a file that exists belongs to a complete outbox.

mod inspect;
mod plan;

use super::failed::Failed;
use super::frame::{ConfigFile, block_on, loaded};
use super::{check_config, output};
use crate::config::{self, Config, DEFAULT_FILE, Secret, TableName};
use clap::Args;
use inspect::OwnerUrl;
use kafka::operate::topics::Shape;
use kafka::options::is_secret;
use pg_outbox::topic::{TopicTemplate, check_topic};
use postgres::access::roles::{RelayRole, example_insert};
use settings::text::shell;
use std::path::{Path, PathBuf};

const DATABASE: &str = "postgres://postgres@localhost/app";
const BROKERS: &str = "localhost:9092";
/// The answer that means no topics.
const NONE: &str = "none";
/// The aggregate type of the example event, unless the topics are for others.
const AGGREGATE_TYPE: &str = "order";
/// systemd documents this as the test for a running systemd.
const SYSTEMD: &str = "/run/systemd/system";

const HEADER: &str = "\
# The configuration of outbox-relay, written by `outbox-relay init`. `man outbox-relay.toml` lists every setting. After a
# change, run `outbox-relay check-config`.
";

#[derive(Debug, Args)]
#[command(mut_arg("config", |config| config.help("Configuration file to write [default: /etc/outbox-relay/config.toml]")))]
#[command(after_help = include_str!("../help/init.txt").trim_ascii_end())]
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
    /// With the topics that the user named when asked.
    args: Init,
    file: PathBuf,
    owner: OwnerUrl,
    owner_password: Option<Secret>,
    brokers: String,
    properties: Vec<(String, String)>,
    /// The template in `[outbox] topic` of a new configuration.
    template: String,
    shape: Shape,
}

impl Wanted {
    /// The text of a configuration file with this URL, and this setting for the password.
    fn config_text(&self, url: &str, password: Option<(&str, &str)>) -> String {
        let mut text = format!("{HEADER}\n[postgres]\nurl = {}\n", quoted(url));
        if let Some((setting, value)) = password {
            text += &format!("{setting} = {}\n", quoted(value));
        }
        text += &format!("\n[kafka]\nbootstrap_servers = {}\n", quoted(&self.brokers));
        if !self.properties.is_empty() {
            text += "\n[kafka.properties]\n";
        }
        for (name, value) in &self.properties {
            text += &format!("{} = {}\n", quoted(name), quoted(value));
        }
        let (table, topic) = (quoted(&self.args.table.to_string()), quoted(&self.template));
        text + &format!("\n[outbox]\ntable = {table}\ntopic = {topic}\n")
    }
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let escaped = |character: char| match character {
        '"' | '\\' => format!("\\{character}"),
        control if control.is_control() => format!("\\u{:04X}", u32::from(control)),
        plain => plain.to_string(),
    };
    format!("\"{}\"", text.chars().map(escaped).collect::<String>())
}

impl Init {
    pub(crate) fn run(self) -> Result<(), Failed> {
        let wanted = self.wanted()?;
        if !block_on(prepare(&wanted))?? {
            return Ok(());
        }
        let config = loaded(Some(&wanted.file), config::load(Some(&wanted.file), inspect::variables()))?;
        check_config::check(&config, &wanted.file.display().to_string(), true, &wanted.args.topics)?;
        output::text(next_commands(&wanted, &config))
    }

    /// The arguments, and answers for those that are missing.
    fn wanted(mut self) -> Result<Wanted, Failed> {
        let asks = !self.yes && output::can_ask();
        if !asks && !self.yes && !self.dry_run {
            let text = "stdin is not a terminal, so the command cannot ask for confirmation. Pass --yes, or --dry-run";
            return Err(Failed::Usage(text.to_owned()));
        }
        let or_ask = |given: Option<String>, option: &str, question: &str, example: &str| match given {
            Some(given) => Ok(given),
            None if asks => output::ask(question, example),
            None => Err(Failed::Usage(format!("{option} is missing, for example {option} {example}"))),
        };
        let file = self.config.target()?;
        // Not a clap parser, because its errors would quote a secret.
        let properties: Result<_, _> = self.properties.iter().map(|text| property(text)).collect();
        let properties = properties.map_err(|error| Failed::Usage(format!("--kafka-property: {error}")))?;
        let question = "Database URL of a role that may create tables and roles";
        let url = or_ask(self.database.clone(), "--database", question, DATABASE)?;
        let owner = OwnerUrl::parse(&url).map_err(|problem| unusable(&problem))?;
        if owner.text == owner.of_role(self.role.relay()) {
            return Err(unusable(&format!(
                "{} is the relay's own role, which must not own the tables. Fix: use the URL of a role that may create tables \
                 and roles",
                self.role
            )));
        }
        // The variable that psql reads too.
        let owner_password = match std::env::var("PGPASSWORD").ok().filter(|password| !password.is_empty()) {
            None if asks => output::ask_password("Password of that role (empty for none)")?,
            given => given.map(Secret::new),
        };
        let brokers = or_ask(self.brokers.clone(), "--brokers", "Kafka brokers", BROKERS)?;
        if self.topics.is_empty() && asks {
            self.topics = asked_topics(&output::ask("Topics to create, such as events.order", NONE)?)?;
        }
        Ok(Wanted {
            file,
            owner,
            owner_password,
            brokers,
            properties,
            template: template(&self.topics),
            shape: Shape { partitions: self.partitions, replicas: self.replication_factor },
            args: self,
        })
    }
}

/// Shows the plan and carries it out. Returns false for a dry run.
async fn prepare(wanted: &Wanted) -> Result<bool, Failed> {
    let Init { yes, dry_run, .. } = wanted.args;
    let (plan, mut servers) = inspect::inspect(wanted).await?;
    let details = if yes && !dry_run { String::new() } else { plan.details() };
    output::text(format!("{details}{plan}\n"))?;
    if dry_run {
        return Ok(false);
    }
    if !yes && plan.changes_something() {
        output::confirm("Continue?")?;
    }
    plan.apply(&mut servers).await?;
    Ok(true)
}

fn unusable(text: &str) -> Failed {
    let stop = if text.ends_with('?') { "" } else { "." };
    Failed::configuration(format!("{text}{stop} Nothing was changed."))
}

fn asked_topics(answer: &str) -> Result<Vec<String>, Failed> {
    if answer == NONE {
        return Ok(Vec::new());
    }
    answer.split(',').map(|name| topic(name.trim()).map_err(Failed::Usage)).collect()
}

/// The template of the first topic: its last part is the aggregate type. `inspect` checks the other topics.
fn template(topics: &[String]) -> String {
    let prefix = topics.first().map_or("events.", |topic| topic.trim_end_matches(|c: char| c != '.'));
    format!("{prefix}{{aggregate_type}}")
}

fn topic(name: &str) -> Result<String, String> {
    check_topic(name).map(|()| name.to_owned()).map_err(|error| error.to_string())
}

fn property(text: &str) -> Result<(String, String), String> {
    match text.split_once('=').map(|(name, value)| (name.trim(), value)) {
        Some((name, _)) if is_secret(name) => Err(format!(
            "other users can see the arguments of a command. Write the secret to a file, and pass {name}_file=NAME"
        )),
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it as NAME=VALUE".to_owned()),
    }
}

/// The next commands, for a user who has run `init`.
fn next_commands(wanted: &Wanted, config: &Config) -> String {
    let file = wanted.file.display().to_string();
    let run = match config::unit(&file) {
        Some(unit) if Path::new(SYSTEMD).exists() => format!("sudo systemctl enable --now {unit}"),
        _ if file == DEFAULT_FILE => "outbox-relay run".to_owned(),
        _ => format!("outbox-relay run --config {}", shell(&file)),
    };
    let psql = |sql: &str| format!("psql {} -c {}", shell(&wanted.owner.text), shell(sql));
    let Init { table, role, topics, .. } = &wanted.args;
    let grant = psql(&role.operator_grant("alice"));
    let insert = psql(&example_insert(table, aggregate_type(&config.outbox.topic, topics)));
    format!(
        "\nTo let alice use the commands of operators, such as `dead-letters` (docs/operating.md):\n  {grant}\n\
         \nNext, start the relay, and insert an event from another terminal:\n  {run}\n  {insert}\n"
    )
}

/// An aggregate type whose events belong to one of these topics, if the topic depends only on the type.
fn aggregate_type<'a>(template: &TopicTemplate, topics: &'a [String]) -> &'a str {
    let of = |topic: &'a String| topic.strip_prefix(template.prefix())?.strip_suffix(template.suffix());
    let is_type = |name: &&str| !name.is_empty() && template.is_by_aggregate_type();
    topics.iter().filter_map(of).find(is_type).unwrap_or(AGGREGATE_TYPE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    #[test]
    fn the_written_configuration_is_valid_and_has_these_settings() {
        let table = "\"My Schema\".\"out\"\"box\"";
        let url = "postgres://relay@localhost/app?application_name=a%20b";
        let secret = Secret::new("a\"b\\c\u{7f}\n\u{e9}");
        let outbox =
            ["--config", "config.toml", "--database", url, "--table", table, "--topic", "shop.order"];
        let kafka = ["--brokers", "k1:9092,k2:9092", "--kafka-property", "security.protocol=ssl", "--yes"];
        let command = Cli::parse_from([&["outbox-relay", "init"][..], &outbox, &kafka].concat()).command;
        let Command::Init(init) = command else { panic!() };
        let wanted = init.wanted().unwrap();
        let text = wanted.config_text(url, Some(("password", secret.expose())));
        let loaded = config::load_text(&wanted.file, &text, std::iter::empty());
        let config = loaded.unwrap_or_else(|findings| panic!("{findings}\n{text}"));
        assert_eq!(config.outbox.table, table.parse::<TableName>().unwrap());
        assert_eq!(config.outbox.topic.topic("order", ""), "shop.order");
        assert_eq!(config.kafka.bootstrap_servers, "k1:9092,k2:9092");
        assert_eq!(config.postgres.password.unwrap().read().unwrap(), secret);
        assert!(config.kafka.properties.contains_key("security.protocol"));
    }

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

    #[test]
    fn the_example_event_belongs_to_a_created_topic() {
        let topics = ["other", "events.invoice", "shop.invoice.v1"].map(str::to_owned);
        for (template, expected) in [
            ("events.{aggregate_type}", "invoice"),
            ("shop.{aggregate_type}.v1", "invoice"),
            ("{aggregate_type}", "other"),
            ("unused.{aggregate_type}", "order"),
            ("events.{aggregate_type}.{event_type}", "order"),
            ("events.{event_type}", "order"),
            ("other", "order"),
        ] {
            assert_eq!(aggregate_type(&template.parse().unwrap(), &topics), expected, "{template}");
        }
    }

    #[test]
    fn words_are_quoted_if_the_shell_would_change_them() {
        for (text, word) in [
            ("/etc/a.toml", "/etc/a.toml"),
            ("postgres://postgres@localhost/app", "postgres://postgres@localhost/app"),
            ("a?b&c", "\"a?b&c\""),
            ("VALUES ('x')", "\"VALUES ('x')\""),
            ("\"a\" 'b'", "'\"a\" '\\''b'\\'''"),
            ("", "\"\""),
        ] {
            assert_eq!(shell(text), word);
        }
    }
}
