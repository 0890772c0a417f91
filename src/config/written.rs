//! Written configurations: the example, the first file of `init`, and the one in force for the status page.

use super::catalogue::{CATALOGUE, Fallback, Kind, Setting};
use super::{Config, Secret, TableName};
use settings::setting::Section;
use std::fmt::Write as _;

const HEADER: &str = "\
# The configuration of outbox-relay, written by `outbox-relay init`. `man outbox-relay.toml` lists every setting. After a
# change, run `outbox-relay check-config`.
";

/// A configuration file that shows every setting with its default and its meaning.
pub fn example() -> String {
    let mut text = String::from(
        "# Every setting of outbox-relay, with its default. Settings without `#` are required. A commented-out setting shows\n\
         # its default, or an example if it has no default.\n\
         #\n\
         # An environment variable overrides the file: OUTBOX_RELAY__RELAY__BATCH_SIZE sets [relay] batch_size.\n\
         # `outbox-relay check-config` reports every problem in the file.\n",
    );
    for group in CATALOGUE.sections {
        text.push('\n');
        for line in group.about.lines() {
            text.push_str(&format!("# {line}\n"));
        }
        text.push_str(&format!("[{}]\n", group.name));
        for setting in group.settings {
            text.push('\n');
            for line in setting.help.lines() {
                text.push_str(&format!("# {line}\n"));
            }
            text.push_str(&assignment(setting));
        }
    }
    text
}

fn assignment(setting: &Setting) -> String {
    if let Kind::Table(table) = setting.kind {
        return format!("[{}]\n{}", table.section, table.lines);
    }
    let key = setting.key;
    match setting.fallback {
        Fallback::Required(value) => format!("{key} = {}\n", toml(setting.kind, value)),
        Fallback::Default(value) | Fallback::Unset(value) => {
            format!("#{key} = {}\n", toml(setting.kind, value))
        }
    }
}

/// A value as it is written in TOML; the catalogue has it as the environment would give it.
fn toml(kind: Kind, value: &str) -> String {
    match kind {
        Kind::Flag | Kind::Count(..) | Kind::Command => value.to_owned(),
        _ => format!("{value:?}"),
    }
}

/// The settings of a new configuration file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draft<'a> {
    /// The URL of the database, without a password.
    pub(crate) url: &'a str,
    /// The password of the role in the URL.
    pub(crate) password: DraftPassword<'a>,
    /// Bootstrap brokers as host:port, separated by commas.
    pub(crate) brokers: &'a str,
    /// librdkafka properties.
    pub(crate) properties: &'a [(String, String)],
    /// The outbox table.
    pub(crate) table: &'a TableName,
    /// The template in `[outbox] topic`.
    pub(crate) topic: &'a str,
}

/// How a new configuration file names the password.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DraftPassword<'a> {
    /// Not at all.
    None,
    /// By value, for a text that is never written to a file.
    Inline(&'a Secret),
    /// By the name of the file that contains it.
    File(&'a str),
}

impl Draft<'_> {
    /// The content of the file.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{HEADER}\n[postgres]\nurl = {}\n", quoted(self.url));
        match self.password {
            DraftPassword::None => {}
            DraftPassword::Inline(secret) => _ = writeln!(text, "password = {}", quoted(secret.expose())),
            DraftPassword::File(name) => _ = writeln!(text, "password_file = {}", quoted(name)),
        }
        _ = write!(text, "\n[kafka]\nbootstrap_servers = {}\n", quoted(self.brokers));
        if !self.properties.is_empty() {
            text.push_str("\n[kafka.properties]\n");
            for (name, value) in self.properties {
                _ = writeln!(text, "{} = {}", quoted(name), quoted(value));
            }
        }
        let (table, topic) = (quoted(&self.table.to_string()), quoted(self.topic));
        _ = write!(text, "\n[outbox]\ntable = {table}\ntopic = {topic}\n");
        text
    }
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => _ = write!(quoted, "\\u{:04X}", u32::from(control)),
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}

/// A setting in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SettingInForce {
    /// Such as `relay`.
    pub(crate) section: &'static str,
    pub(crate) key: String,
    /// A secret is hidden.
    pub(crate) value: String,
}

impl Config {
    /// The settings in force, in the order of the file. Settings without a value are left out, and secrets are hidden.
    pub(crate) fn shown(&self) -> Vec<SettingInForce> {
        let mut shown = Vec::new();
        add(&mut shown, &self.postgres);
        add(&mut shown, &self.kafka);
        shown.extend(self.kafka.properties.iter().map(|(name, property)| SettingInForce {
            section: "kafka.properties",
            key: name.clone(),
            value: property.shown().unwrap_or_default(),
        }));
        self.kafka.oauth.iter().for_each(|oauth| add(&mut shown, oauth));
        self.kafka.aws.iter().for_each(|aws| add(&mut shown, aws));
        add(&mut shown, &self.outbox);
        shown.extend(self.outbox.headers.iter().map(|header| SettingInForce {
            section: "outbox.headers",
            key: header.name.clone(),
            value: header.template(),
        }));
        shown.extend(self.outbox.table.columns().renamed().map(|(column, name)| SettingInForce {
            section: "outbox.columns",
            key: column.name().to_owned(),
            value: name.to_owned(),
        }));
        add(&mut shown, &self.relay);
        add(&mut shown, &self.reaper);
        add(&mut shown, &self.admin);
        add(&mut shown, &self.log);
        shown
    }
}

fn add<S: Section>(shown: &mut Vec<SettingInForce>, section: &S) {
    let values = section.shown().into_iter().filter_map(|(key, value)| Some((key, value?)));
    shown.extend(values.map(|(key, value)| SettingInForce { section: S::NAME, key: key.to_owned(), value }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_text;
    use std::path::Path;

    #[test]
    fn the_draft_is_a_valid_configuration_with_these_settings() {
        let table: TableName = "\"My Schema\".\"out\"\"box\"".parse().unwrap();
        let properties = [("security.protocol".to_owned(), "ssl".to_owned())];
        let secret = Secret::new("a\"b\\c\u{7f}\n\u{e9}");
        let draft = Draft {
            url: "postgres://relay@localhost/app?application_name=a%20b",
            password: DraftPassword::Inline(&secret),
            brokers: "k1:9092,k2:9092",
            properties: &properties,
            table: &table,
            topic: "shop.{aggregate_type}",
        };
        let path = Path::new("config.toml");
        let loaded = load_text(path, &draft.text(), std::iter::empty());
        let config = loaded.unwrap_or_else(|findings| panic!("{findings}\n{}", draft.text()));
        assert_eq!(config.outbox.table, table);
        assert_eq!(config.outbox.topic.topic("order", ""), "shop.order");
        assert_eq!(config.kafka.bootstrap_servers, "k1:9092,k2:9092");
        assert_eq!(config.postgres.password.unwrap().read().unwrap(), secret);
        assert!(config.kafka.properties.contains_key("security.protocol"));
    }
}
