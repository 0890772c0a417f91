//! Written configurations: the example, and the first file of `init`.

use super::catalogue::{CATALOGUE, Fallback, Kind, Setting};
use super::{Secret, TableName};
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
    let comment = |text: &str| text.lines().map(|line| format!("# {line}\n")).collect::<String>();
    for group in CATALOGUE.sections {
        _ = write!(text, "\n{}[{}]\n", comment(group.about), group.name);
        for setting in group.settings {
            _ = write!(text, "\n{}{}", comment(setting.help), assignment(setting));
        }
    }
    text
}

/// The setting as it is written in TOML. The catalogue has its value as the environment would give it.
fn assignment(setting: &Setting) -> String {
    let (mark, value) = match setting.fallback {
        Fallback::Required(value) => ("", value),
        Fallback::Default(value) | Fallback::Unset(value) => ("#", value),
    };
    match setting.kind {
        Kind::Table(table) => format!("[{}]\n{}", table.section, table.lines),
        Kind::Flag | Kind::Count(..) | Kind::Command => format!("{mark}{} = {value}\n", setting.key),
        _ => format!("{mark}{} = {value:?}\n", setting.key),
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Draft<'a> {
    /// The URL of the database, without a password.
    pub(crate) url: &'a str,
    pub(crate) password: DraftPassword<'a>,
    /// Bootstrap brokers as host:port, separated by commas.
    pub(crate) brokers: &'a str,
    pub(crate) properties: &'a [(String, String)],
    pub(crate) table: &'a TableName,
    /// The template in `[outbox] topic`.
    pub(crate) topic: &'a str,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum DraftPassword<'a> {
    None,
    /// By value, for a text that is never written to a file.
    Inline(&'a Secret),
    /// By the name of the file that contains it.
    File(&'a str),
}

impl Draft<'_> {
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
