//! The first configuration file, as `outbox-relay init` writes it.

use std::fmt::Write as _;

use crate::config::{Secret, TableName};

const HEADER: &str = "\
# The configuration of outbox-relay, written by `outbox-relay init`. `man outbox-relay.toml` lists every setting. After a
# change, run `outbox-relay check-config`.
";

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
