//! Which settings a running relay applies.

use super::{LEAST, with};
use crate::config::catalogue::CATALOGUE;
use crate::config::{Config, Effect, PasswordCommand, changes, compared};
use settings::setting::{Compared, Setting};

const OPERATING: &str = include_str!("../../../docs/operating.md");
const SECURITY: &str = include_str!("../../../docs/security.md");

/// Every setting has a value other than its default, except the url and the brokers.
const ALL: &str = "
[postgres]
url = 'postgres://relay@localhost/app'
password = 'new'
sslmode = 'verify-full'
sslrootcert = 'system'
connect_timeout = '7s'
prepared_statements = false
application_name = 'other'
[kafka]
bootstrap_servers = 'localhost:9092'
[outbox]
table = 'other.outbox'
topic_allow = 'other.*'
topic = 'other'
envelope = 'cloudevents'
cloudevents_source = '/other'
on_sent = 'delete'
on_rejected = 'block-key'
rejections_before_hold = 7
[relay]
batch_size = 7
batch_bytes = '7MiB'
poll_interval = '7ms'
flow_window = '7ms'
workers = 7
publish_timeout = '17s'
takeover_timeout = '7s'
shutdown_timeout = '70s'
[reaper]
enabled = false
retention = '7s'
interval = '7s'
batch_size = 7
inbox_retention = '7m'
idempotency_retention = '7m'
[admin]
listen = 'off'
[log]
level = 'debug'
format = 'json'
";

fn loaded(text: &str) -> Config {
    super::Case::new(text).load().unwrap_or_else(|findings| panic!("{findings}"))
}

#[test]
fn every_setting_is_compared_and_its_effect_is_documented() {
    let (running, other) = (loaded(LEAST), loaded(ALL));
    let all = compared(&running, &other);
    for setting in CATALOGUE.settings().filter(|setting| !setting.kind.is_table()) {
        let key = CATALOGUE.twin(setting).map_or(setting.key, |twin| twin.key.min(setting.key));
        let known =
            all.iter().find(|known| (known.setting.section, known.setting.key) == (setting.section, key));
        let Compared { setting: Setting { section, key, effect, .. }, differs, .. } =
            known.unwrap_or_else(|| panic!("{setting:?} is not compared"));
        // The password command cannot be set together with the password, nor the token sections without a login.
        let unchanged = ["url", "bootstrap_servers", "sslcert", "sslkey", "password_command"].contains(key)
            || ["kafka.oauth", "kafka.aws"].contains(section);
        assert_eq!(
            *differs, !unchanged,
            "[{section}] {key}: ALL must set it to a value other than its default"
        );
        let when = match effect {
            Effect::Now => "| immediately |",
            Effect::NextConnection => "| on the next connection |",
            Effect::Restart => "| after a restart |",
        };
        let row = OPERATING.lines().find(|line| line.starts_with(when)).unwrap();
        assert!(
            row.contains(&format!("`[{section}]")) && row.contains(&format!("`{key}`")),
            "docs/operating.md does not list [{section}] {key} in this row: {row}"
        );
    }
}

#[test]
fn secrets_that_need_a_restart_are_documented() {
    let (_, after) = SECURITY.split_once("\n## Rotation\n").unwrap();
    let rotation = after.split("\n## ").next().unwrap();
    for Setting { section, key, .. } in
        CATALOGUE.settings().filter(|setting| setting.secret && setting.effect == Effect::Restart)
    {
        let name = format!("`[{section}] {key}`");
        assert!(rotation.contains(&name), "docs/security.md does not name {name} in the section Rotation");
    }
}

#[test]
fn a_reload_applies_exactly_the_settings_that_need_no_restart() {
    let (running, other) = (loaded(LEAST), loaded(ALL));
    let reloaded = running.reloaded(&other);
    assert!(changes(&running, &reloaded).iter().all(|change| change.effect != Effect::Restart));
    assert!(changes(&reloaded, &other).iter().all(|change| change.effect == Effect::Restart));
    let all = changes(&running, &other).len();
    assert_eq!(changes(&running, &reloaded).len() + changes(&reloaded, &other).len(), all);
    assert_eq!(reloaded.relay.batch_size, 7);
    assert_eq!(reloaded.relay.workers, running.relay.workers);
}

#[test]
fn settings_that_need_a_restart_can_conflict_with_those_that_a_reload_applies() {
    for (running, new, expected) in [
        (
            "[kafka.properties]\n'linger.ms' = 20000\n",
            "[relay]\npublish_timeout = '10s'\n",
            Some(
                "Kafka property `linger.ms` is 20000 (milliseconds), but must be below [relay] publish_timeout (10s)",
            ),
        ),
        (
            "[relay]\nworkers = 64\n",
            "[relay]\nbatch_bytes = '1GiB'\n",
            Some("workers times batch_bytes is 64GiB, but must be at most 8GiB"),
        ),
        ("[relay]\nworkers = 64\n", "[relay]\npublish_timeout = '10s'\n", None),
    ] {
        let (running, new) = (with(running).load().unwrap(), with(new).load().unwrap());
        assert_eq!((running.conflict(), new.conflict()), (None, None));
        let conflict = running.reloaded(&new).conflict();
        assert_eq!(conflict.is_some(), expected.is_some(), "{conflict:?}");
        assert!(conflict.is_none_or(|text| text.starts_with(expected.unwrap_or_default())));
    }
}

#[test]
fn a_password_command_is_applied() {
    let running = loaded(LEAST);
    let new = loaded(&LEAST.replace("[kafka]", "password_command = ['print-it']\n[kafka]"));
    assert_eq!(changes(&running, &new)[0].effect, Effect::NextConnection);
    let command = running.reloaded(&new).postgres.password_command;
    assert_eq!(command.as_ref().map(PasswordCommand::program), Some("print-it"));
}

#[test]
fn a_password_for_another_server_is_not_applied() {
    let running = with(
        "[kafka.properties]\n'security.protocol' = 'sasl_ssl'\n'sasl.mechanism' = 'PLAIN'\n'sasl.password' = 'old'\n",
    );
    let running = running.load().unwrap();
    let text = "[postgres]\nurl = 'postgres://relay@elsewhere/app'\npassword = 'new'\n[kafka]\nbootstrap_servers = 'k2:9092'\n\
                [kafka.properties]\n'security.protocol' = 'sasl_ssl'\n'sasl.mechanism' = 'PLAIN'\n'sasl.password' = 'new'\n";
    let other = loaded(text);
    assert!(changes(&running, &other).iter().all(|change| change.effect == Effect::Restart));
    assert_eq!(changes(&running, &other).len(), 4);
    assert!(changes(&running, &running.reloaded(&other)).is_empty());
    let rotated = loaded(&text.replace("elsewhere", "localhost").replace("k2:", "localhost:"));
    let effects: Vec<_> = changes(&running, &rotated).iter().map(|change| change.effect).collect();
    assert_eq!(effects, [Effect::NextConnection, Effect::Now]);
    assert!(changes(&running.reloaded(&rotated), &rotated).is_empty());
}
