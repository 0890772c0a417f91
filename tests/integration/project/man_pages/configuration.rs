//! Section 5: the configuration file, from the catalogue of settings.

use clap_mangen::roff::{Roff, bold, roman};
use humantime::format_duration;
use outbox_relay::config::ByteSize;
use outbox_relay::config::catalogue::{CATALOGUE, Fallback, Group, Kind, Setting};
use std::time::Duration;

use super::MANUAL;
use super::commands::{list, section, source, verbatim, with_empty_date};

const DESCRIPTION: &[&str] = &[
    "outbox-relay reads one configuration file in TOML. Only url (or url_file) in [postgres] and bootstrap_servers \
     in [kafka] are required. An unknown key is an error. \"outbox-relay check-config\" reports every problem in \
     the file at once, without starting the relay.",
    "Durations are written as \"50ms\", \"10s\", \"1h 30m\" or \"7d\", sizes as \"512KiB\" or \"8MiB\".",
    "Environment variables override the file: OUTBOX_RELAY__RELAY__BATCH_SIZE sets batch_size in [relay]. Without a \
     file, the environment must provide all required settings.",
];

const SECRETS: &str = "A secret can be in a separate file. For url, password, client_secret and each secret property \
                       of librdkafka, there is a second setting whose name ends in _file. A relative file name is \
                       looked up in $CREDENTIALS_DIRECTORY, which systemd sets for a service with LoadCredential=, \
                       then in the directory of the configuration file. Secrets are never shown or logged.";

const EXAMPLE: &str = "\
[postgres]
url_file = \"postgres-url\"

[kafka]
bootstrap_servers = \"kafka-1.example:9093,kafka-2.example:9093\"

[kafka.properties]
\"security.protocol\" = \"sasl_ssl\"
\"sasl.mechanism\" = \"SCRAM-SHA-512\"
\"sasl.username\" = \"outbox-relay\"
\"sasl.password_file\" = \"kafka-password\"

[relay]
batch_size = 5000";

/// The page outbox-relay.toml(5).
pub fn page() -> String {
    let mut roff = Roff::new();
    roff.control("TH", ["outbox-relay.toml", "5", "", &source(), MANUAL]);
    roff.control("SH", ["NAME"]).text([roman("outbox-relay.toml - configuration of outbox-relay")]);
    roff.control("SH", ["SYNOPSIS"]).text([roman("/etc/outbox-relay/config.toml")]);
    roff.control("SH", ["DESCRIPTION"]);
    for paragraph in DESCRIPTION {
        roff.control("PP", []).text([roman(*paragraph)]);
    }
    for Group { name, about, settings } in CATALOGUE.sections {
        roff.control("SH", [&*format!("[{name}]")]).text([roman(about.replace('\n', " "))]);
        for setting in *settings {
            roff.control("TP", []).text([bold(setting.key), roman(format!(" ({})", takes(setting.kind)))]);
            roff.text([roman(setting.help.replace('\n', " "))]).control("br", []);
            roff.text([roman(fallback(setting))]);
        }
    }
    let mut page = with_empty_date(&roff.render());
    page += &section("SECRETS", SECRETS);
    page += &verbatim("EXAMPLE", EXAMPLE);
    let files = [("/usr/share/doc/outbox-relay/config.example.toml", "Every setting, with its default.")];
    page += &list("FILES", &files);
    page += &section("SEE ALSO", "outbox-relay(1), outbox-relay-check-config(1)");
    page
}

fn takes(kind: Kind) -> String {
    match kind {
        Kind::Text => "text".to_owned(),
        Kind::File => "file name".to_owned(),
        Kind::Flag => "true or false".to_owned(),
        Kind::Choice(words) => format!("one of {}", words.join(", ")),
        Kind::Count(min, max) => format!("number, {min} to {max}"),
        Kind::Size(min, max) => {
            format!("size, {} to {}", ByteSize::bytes(min), ByteSize::bytes(max))
        }
        Kind::Span(min, max) => {
            format!("duration, {} to {}", span(min), span(max))
        }
        Kind::Command => "array of strings".to_owned(),
        Kind::Table(_) => "table".to_owned(),
    }
}

/// Whole days as days: humantime would write years for the longest retention.
fn span(span: Duration) -> String {
    const DAY: u64 = 24 * 60 * 60;
    match span.as_secs() {
        secs if secs > 0 && secs.is_multiple_of(DAY) => format!("{}d", secs / DAY),
        _ => format_duration(span).to_string(),
    }
}

fn fallback(setting: &Setting) -> String {
    match setting.fallback {
        Fallback::Default("") => "Default: none.".to_owned(),
        Fallback::Default(value) => format!("Default: {value}."),
        Fallback::Required(example) => format!("Required, such as {example}."),
        Fallback::Unset("") => "Not set by default.".to_owned(),
        Fallback::Unset(example) => format!("Not set by default. Example: {example}."),
    }
}

#[test]
fn example_in_the_manual_is_a_valid_configuration() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.toml"), EXAMPLE).unwrap();
    for (name, secret) in [("postgres-url", "postgres://relay@localhost/app"), ("kafka-password", "secret")] {
        let file = folder.path().join(name);
        std::fs::write(&file, secret).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o400)).unwrap();
    }
    let config = outbox_relay::config::load(Some(&folder.path().join("config.toml")), std::iter::empty());
    assert!(config.unwrap_or_else(|findings| panic!("{findings}")).warnings.is_empty());
}
