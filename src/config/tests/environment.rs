//! The environment overrides the file.

use super::{Case, LEAST, with};
use crate::config::catalogue::{CATALOGUE, Fallback};
use crate::config::{HeaderTemplate, LogFormat, OnSent, Part, Property, TlsMode};

#[test]
fn every_kind_of_setting_can_be_set_in_the_environment() {
    let config = Case::without_file()
        .env("OUTBOX_RELAY__POSTGRES__URL", "postgres://relay@localhost/app")
        .env("OUTBOX_RELAY__KAFKA__BOOTSTRAP_SERVERS", "k1:9092,k2:9092")
        .env("OUTBOX_RELAY__KAFKA__PROPERTIES__LINGER_MS", "1")
        .env("OUTBOX_RELAY__RELAY__BATCH_SIZE", " 100 ")
        .env("OUTBOX_RELAY__RELAY__BATCH_BYTES", "1MiB")
        .env("OUTBOX_RELAY__RELAY__POLL_INTERVAL", "1s")
        .env("OUTBOX_RELAY__REAPER__ENABLED", "false")
        .env("OUTBOX_RELAY__OUTBOX__ON_SENT", "delete")
        .env("OUTBOX_RELAY__OUTBOX__HEADERS__TRACE_ID", "{event_id}")
        .env("OUTBOX_RELAY__LOG__FORMAT", "json")
        .env("PATH", "/bin")
        .load()
        .unwrap();
    assert_eq!(config.kafka.bootstrap_servers, "k1:9092,k2:9092");
    assert_eq!(config.kafka.properties["linger.ms"], Property::Plain("1".into()));
    assert_eq!(config.relay.batch_size, 100);
    assert_eq!(config.relay.batch_bytes.as_u64(), 1 << 20);
    assert_eq!(config.relay.poll_interval.as_secs(), 1);
    assert!(!config.reaper.enabled);
    assert_eq!(config.outbox.on_sent, OnSent::Delete);
    assert_eq!(
        config.outbox.headers,
        [HeaderTemplate { name: "trace_id".into(), value: vec![Part::EventId] }]
    );
    assert_eq!(config.log.format, LogFormat::Json);
}

/// Only a secret is replaced by its file.
#[test]
fn a_header_of_the_environment_keeps_one_whose_name_differs_in_the_end() {
    let case = with("[outbox.headers]\ntrace = 'a'\n").env("OUTBOX_RELAY__OUTBOX__HEADERS__TRACE_FILE", "b");
    let config = case.load().unwrap();
    let names: Vec<&str> = config.outbox.headers.iter().map(|header| header.name.as_str()).collect();
    assert_eq!(names, ["trace", "trace_file"]);
}

#[test]
fn the_environment_overrides_the_file_even_if_the_file_is_invalid() {
    let case = with("[relay]\nworkers = 0\n[kafka.properties]\n'linger.ms' = 7\n")
        .env("OUTBOX_RELAY__RELAY__WORKERS", "2")
        .env("OUTBOX_RELAY__KAFKA__PROPERTIES__LINGER_MS", "1");
    let config = case.load().unwrap();
    assert_eq!(config.relay.workers, 2);
    assert_eq!(config.kafka.properties["linger.ms"], Property::Plain("1".into()));
}

#[test]
fn the_password_of_the_file_is_not_used_with_the_url_of_the_environment() {
    let text = LEAST.replace("[kafka]", "password_file = 'pw'\n[kafka]");
    let password = |case: Case| {
        let connection = case.load().unwrap().postgres.connection().unwrap();
        connection.config.get_password().map(|password| String::from_utf8_lossy(password).into_owned())
    };
    let case = || Case::new(&text).file("pw", "of-the-relay");
    assert_eq!(password(case()).as_deref(), Some("of-the-relay"));
    let url = "OUTBOX_RELAY__POSTGRES__URL";
    assert_eq!(password(case().env(url, "postgres://alice@localhost/app")), None);
    assert_eq!(password(case().env(url, "postgres://alice:hers@localhost/app")).as_deref(), Some("hers"));
    let with_password = case().env(url, "postgres://alice@localhost/app");
    let with_password = with_password.env("OUTBOX_RELAY__POSTGRES__PASSWORD", "separate");
    assert_eq!(password(with_password).as_deref(), Some("separate"));
    // The password file need not be readable either.
    assert_eq!(
        password(Case::new(&text).env(url, "postgres://alice:hers@localhost/app")).as_deref(),
        Some("hers")
    );
}

#[test]
fn the_url_of_the_environment_overrides_the_tls_settings_of_the_file() {
    let text = LEAST.replace("[kafka]", "sslmode = 'disable'\nsslcert = 'c.pem'\nsslkey = 'c.key'\n[kafka]");
    let tls = |url: &str| {
        let case = Case::new(&text).file("c.pem", "").file("c.key", "").file("a.pem", "").file("a.key", "");
        let case = case.env("OUTBOX_RELAY__POSTGRES__URL", url);
        (case.load().unwrap().postgres.connection().unwrap().tls, case.path("a.key"), case.path("c.key"))
    };
    let (own, alices, _) =
        tls("postgres://alice@localhost/app?sslmode=verify-full&sslcert=a.pem&sslkey=a.key");
    assert_eq!((own.mode, own.client_key), (TlsMode::VerifyFull, Some(alices)));
    let (unchanged, _, relays) = tls("postgres://alice@localhost/app");
    assert_eq!((unchanged.mode, unchanged.client_key), (TlsMode::Disable, Some(relays)));
}

#[test]
fn the_environment_overrides_another_name_of_a_property() {
    let text = format!("{LEAST}[kafka.properties]\n'queue.buffering.max.ms' = 7\n");
    let config = Case::new(&text).env("OUTBOX_RELAY__KAFKA__PROPERTIES__LINGER_MS", "1").load().unwrap();
    assert_eq!(config.kafka.properties["linger.ms"], Property::Plain("1".into()));
    assert!(!config.kafka.properties.contains_key("queue.buffering.max.ms"));
}

#[test]
fn an_unknown_variable_is_a_finding_with_the_nearest_name() {
    Case::new(LEAST).env("OUTBOX_RELAY__RELAY__BATCHSIZE", "1").assert_finding(
        "error: environment variable OUTBOX_RELAY__RELAY__BATCHSIZE: no setting has this name\n  \
         help: did you mean OUTBOX_RELAY__RELAY__BATCH_SIZE?",
    );
}

#[test]
fn a_finding_names_an_invalid_variable() {
    Case::new(LEAST).env("OUTBOX_RELAY__RELAY__WORKERS", "many").assert_finding(
        "error: environment variable OUTBOX_RELAY__RELAY__WORKERS: [relay] workers must be a whole number\n  \
         help: for example workers = 2",
    );
}

#[test]
fn every_setting_has_a_variable() {
    for setting in CATALOGUE.settings().filter(|setting| !setting.kind.is_table()) {
        // No setting accepts this value, so a finding shows that the variable was applied.
        let case = Case::new("").env(&setting.variable(), "\u{0}no such thing");
        let unknown = case.findings().iter().any(|finding| finding.contains("no setting has this name"));
        assert!(!unknown, "{}", setting.variable());
    }
}

#[test]
fn the_catalogue_is_consistent() {
    for setting in CATALOGUE.settings() {
        let name = format!("[{}] {}", setting.section, setting.key);
        assert!(CATALOGUE.sections.iter().any(|group| group.name == setting.section), "{name}");
        assert_eq!(
            CATALOGUE.twin(setting).is_some(),
            setting.secret || setting.key.ends_with("_file"),
            "{name}"
        );
        assert!(!setting.help.is_empty() && setting.help.lines().all(|line| line.len() <= 118), "{name}");
        if let Fallback::Required(example) | Fallback::Unset(example) | Fallback::Default(example) =
            setting.fallback
            && !setting.kind.is_table()
        {
            let raw = settings::reader::Raw::Variable(example.to_owned());
            assert!(settings::reader::parse(setting, &raw).is_ok(), "{name}");
        }
    }
}
