//! `config.example.toml` matches the code.

use super::Case;
use crate::config::catalogue::CATALOGUE;
use crate::config::example;

/// The second one is a seed for fuzzing.
const FILES: [&str; 2] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/config.example.toml"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/configuration/example.toml"),
];

#[test]
fn config_example_is_up_to_date() {
    for file in FILES {
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(file, example()).unwrap();
        }
        let written = std::fs::read_to_string(file).unwrap_or_default();
        assert!(written == example(), "{file} is out of date; run `make docs`");
    }
}

#[test]
fn config_example_is_valid_and_shows_the_defaults() {
    let as_it_is = Case::new(&example()).load().unwrap();
    assert!(as_it_is.warnings.is_empty(), "{}", as_it_is.warnings);
    // With all defaults uncommented, the result is the same.
    let mut text = example();
    for setting in CATALOGUE.settings().filter(|setting| !setting.kind.is_table()) {
        if let crate::config::catalogue::Fallback::Default(_) = setting.fallback {
            assert!(example().contains(&format!("\n#{} = ", setting.key)), "{}", setting.key);
            text = text.replace(&format!("\n#{} = ", setting.key), &format!("\n{} = ", setting.key));
        }
    }
    let written_out = Case::new(&text).load().unwrap();
    assert_eq!(written_out.relay, as_it_is.relay);
    assert_eq!(written_out.outbox, as_it_is.outbox);
    assert_eq!(written_out.reaper, as_it_is.reaper);
    assert_eq!(written_out.admin, as_it_is.admin);
    assert_eq!(written_out.log, as_it_is.log);
}

#[test]
fn config_example_is_valid_with_all_settings_uncommented() {
    // Passwords and tokens cannot be used together. [kafka.aws] follows [kafka.oauth].
    let text = example();
    let (before, rest) = text.split_once("[kafka.oauth]\n").unwrap();
    let (_, after) = rest.split_once("\n# The table, and").unwrap();
    let lines: Vec<_> = before.lines().chain(after.lines().skip(1)).collect();
    let used = lines.iter().map(|line| match line.strip_prefix('#') {
        // Neither can a secret and its twin, or a password and a command that prints it.
        Some(rest)
            if !rest.starts_with(' ')
                && !rest.starts_with("url_file")
                && !rest.starts_with("password_file")
                && !rest.starts_with("password_command") =>
        {
            rest
        }
        _ => line,
    });
    let used = used.collect::<Vec<_>>().join("\n");
    let case = Case::new(&used.replace("envelope = \"none\"", "envelope = \"cloudevents\""));
    let case = ["ca.pem", "client.pem", "client.key", "kafka-ca.pem", "kafka-password"]
        .iter()
        .fold(case, |case, name| case.file(name, "x"));
    let config = case.load().unwrap();
    assert!(config.warnings.is_empty(), "{}", config.warnings);
}
