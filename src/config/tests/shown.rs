//! The configuration that the status page shows.

use super::{Case, LEAST, with};
use crate::config::Config;
use crate::config::catalogue::CATALOGUE;

const MARK: &str = "hunter2";

fn value<'a>(shown: &'a [(String, String)], name: &str) -> &'a str {
    let found = shown.iter().find(|(shown, _)| shown == name);
    found.map_or_else(|| panic!("{name} is missing: {shown:#?}"), |(_, value)| value)
}

fn shown(config: &Config) -> Vec<(String, String)> {
    let name = |section: &str, key: &str| format!("{section} {key}");
    config.shown().into_iter().map(|setting| (name(setting.section, &setting.key), setting.value)).collect()
}

#[test]
fn settings_in_force_are_shown_as_they_would_be_written() {
    let text = "[kafka.properties]\n'linger.ms' = 5\n[outbox.headers]\nid = '{event_id}'\nbraces = 'a{{b}}'\n\
                [relay]\nbatch_bytes = '2MiB'\n[admin]\nlisten = '[::1]:7'\n";
    let shown = shown(&with(text).load().unwrap());
    for (name, expected) in [
        ("kafka bootstrap_servers", "localhost:9092"),
        ("kafka.properties linger.ms", "5"),
        ("outbox table", "public.outbox"),
        ("outbox topic", "events.{aggregate_type}"),
        ("outbox on_sent", "mark"),
        ("outbox.headers id", "{event_id}"),
        ("outbox.headers braces", "a{{b}}"),
        ("relay batch_bytes", "2MiB"),
        ("relay poll_interval", "20ms"),
        ("relay workers", "2"),
        ("reaper enabled", "true"),
        ("admin listen", "[::1]:7"),
        ("log level", "info"),
    ] {
        assert_eq!(value(&shown, name), expected, "{name}");
    }
    assert!(shown.iter().all(|(name, _)| name != "postgres sslmode"), "unset settings are left out");
    // In the order of the file: a table follows its section.
    let place = |name: &str| shown.iter().position(|(shown, _)| shown == name);
    assert!(place("kafka bootstrap_servers") < place("kafka.properties linger.ms"));
    assert!(place("kafka.properties linger.ms") < place("outbox table"));
    assert!(place("outbox rejections_before_hold") < place("outbox.headers id"));
    assert!(place("outbox.headers id") < place("relay batch_size"));
}

#[test]
fn secrets_are_hidden() {
    let text = format!(
        "[postgres]\nurl = 'postgres://relay:{MARK}@localhost/app'\npassword_file = 'pw'\n[kafka]\n\
         bootstrap_servers = 'k1:9092'\n[kafka.properties]\n'security.protocol' = 'sasl_ssl'\n\
         'ssl.key.password' = '{MARK}'\n[kafka.oauth]\ntoken_url = 'https://login.example/token'\n\
         client_id = 'relay'\nclient_secret = '{MARK}'\n"
    );
    let shown = shown(&Case::new(&text).file("pw", MARK).load().unwrap_or_else(|error| panic!("{error}")));
    assert_eq!(value(&shown, "postgres url"), "hidden");
    assert_eq!(value(&shown, "postgres password"), "hidden, from a file");
    assert_eq!(value(&shown, "kafka.properties ssl.key.password"), "hidden");
    assert_eq!(value(&shown, "kafka.oauth client_secret"), "hidden");
    assert_eq!(value(&shown, "kafka.oauth token_url"), "https://login.example/token");
    assert!(!format!("{shown:?}").contains(MARK), "{shown:#?}");

    // A command may contain a secret too.
    let text = LEAST.replace("[kafka]", &format!("password_command = ['echo', '{MARK}']\n[kafka]"));
    let shown = self::shown(&Case::new(&text).load().unwrap());
    assert_eq!(value(&shown, "postgres password_command"), "hidden");
    assert!(!format!("{shown:?}").contains(MARK), "{shown:#?}");
}

#[test]
fn every_setting_with_a_default_is_shown() {
    use crate::config::catalogue::Fallback;
    let shown = shown(&with("").load().unwrap());
    let defaults = CATALOGUE.settings().filter(|setting| matches!(setting.fallback, Fallback::Default(_)));
    for setting in defaults.filter(|setting| !["kafka.oauth", "kafka.aws"].contains(&setting.section)) {
        value(&shown, &format!("{} {}", setting.section, setting.key));
    }
}
