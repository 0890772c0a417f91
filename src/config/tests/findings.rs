//! Each kind of finding, as it is printed.

use super::{Case, LEAST, with};
use crate::config::Severity;

#[test]
fn a_minimal_configuration_has_the_defaults() {
    let config = Case::new(LEAST).load().unwrap();
    assert!(config.warnings.is_empty(), "{}", config.warnings);
    assert_eq!(config.relay.batch_size, 10_000);
    assert_eq!(config.relay.batch_bytes.to_string(), "8MiB");
    assert_eq!(config.relay.poll_interval.as_millis(), 20);
    assert_eq!(config.outbox.table.quoted(), r#""public"."outbox""#);
    assert_eq!(config.outbox.topic.topic("order", "OrderPaid"), "events.order");
    assert_eq!(config.reaper.retention.as_secs(), 86400);
    assert_eq!(config.admin.listen.unwrap().to_string(), "127.0.0.1:10187");
    assert!(config.postgres.prepared_statements && config.reaper.enabled);
}

#[test]
fn a_missing_file_is_a_finding_with_help() {
    let case = Case::without_file();
    let findings = crate::config::load(Some(&case.path("absent.toml")), std::iter::empty()).unwrap_err();
    assert_eq!(findings.len(), 1, "{findings}");
    let text = findings.to_string();
    assert!(text.contains("absent.toml: cannot read the file: No such file"), "{text}");
    assert!(text.contains("help: pass the right file with --config"), "{text}");
}

#[test]
fn a_folder_instead_of_the_file_is_a_finding() {
    let case = Case::without_file();
    let findings = crate::config::load(Some(case.folder.path()), std::iter::empty()).unwrap_err();
    assert!(findings.to_string().contains("cannot read the file: Is a directory"), "{findings}");
}

#[test]
fn a_file_that_is_not_utf8_is_a_finding() {
    Case::new("")
        .file("config.toml", [0xff, 0xfe, 0x00])
        .assert_finding("error: config.toml: the file is not UTF-8 text\n  help: save it as UTF-8");
}

#[test]
fn all_malformed_lines_are_reported() {
    let findings = with("[relay]\nbatch_size 5000\nworkers 3\n[log]\n").findings();
    assert_eq!(findings.len(), 2, "{}", findings.join("\n"));
    assert!(findings[0].starts_with("error: config.toml:6: malformed TOML: "), "{}", findings[0]);
    assert!(findings[0].contains("\n  6 | batch_size 5000"), "{}", findings[0]);
    assert!(findings[1].starts_with("error: config.toml:7: malformed TOML: "), "{}", findings[1]);
}

#[test]
fn a_text_without_quotes_is_a_finding_with_help() {
    let findings = with("[log]\nlevel = info\n").findings();
    assert_eq!(findings.len(), 1, "{}", findings.join("\n"));
    assert!(findings[0].ends_with("\n  6 | level = info\n  help: put text in quotes"), "{}", findings[0]);
}

#[test]
fn a_duplicate_setting_is_a_finding() {
    let findings = with("[relay]\nworkers = 3\nworkers = 4\n").findings();
    assert_eq!(findings.len(), 1, "{}", findings.join("\n"));
    assert!(
        findings[0].starts_with("error: config.toml:7: malformed TOML: duplicate key"),
        "{}",
        findings[0]
    );
}

#[test]
fn an_unknown_key_is_a_finding_with_its_line_and_a_suggestion() {
    with("[relay]\nworkers = 2\nbatch_sise = 500\n").assert_finding(
        "error: config.toml:7: unknown key `batch_sise` in [relay]\n  7 | batch_sise = …\n  help: did you mean `batch_size`?",
    );
}

#[test]
fn the_finding_for_a_key_in_the_wrong_section_names_the_right_one() {
    with("[outbox]\npoll_interval = '1s'\n").assert_finding(
        "error: config.toml:6: unknown key `poll_interval` in [outbox]\n  6 | poll_interval = '1s'\n  help: it belongs to [relay]",
    );
}

#[test]
fn the_finding_for_a_key_before_all_sections_names_its_section() {
    Case::new(&format!("workers = 2\n{LEAST}")).assert_finding(
        "error: config.toml:1: `workers` is outside its section\n  1 | workers = 2\n  help: move it below [relay]",
    );
}

#[test]
fn a_value_for_an_inner_section_is_a_finding() {
    Case::new(&format!("{LEAST}oauth = 'x'\n")).assert_finding(
        "error: config.toml:5: [kafka.oauth] must be a table\n  5 | oauth = …\n  help: write [kafka.oauth] on its own line",
    );
}

#[test]
fn an_unknown_section_is_a_finding_with_a_suggestion() {
    with("[relai]\nworkers = 2\n").assert_finding(
        "error: config.toml:5: unknown section [relai]\n  5 | [relai]\n  help: did you mean [relay]?",
    );
}

#[test]
fn a_section_that_is_not_a_table_is_a_finding() {
    Case::new(&format!("log = 'info'\n{LEAST}")).assert_finding(
        "error: config.toml:1: [log] must be a table\n  1 | log = …\n  help: write [log] on its own line",
    );
}

#[test]
fn a_missing_required_setting_is_a_finding_with_an_example() {
    let findings = Case::new("[relay]\n").findings();
    assert_eq!(
        findings,
        [
            "error: config.toml: [postgres] url or url_file is missing\n  help: set it, for example \
             url = \"postgres://outbox_relay@localhost/app\", or set OUTBOX_RELAY__POSTGRES__URL",
            "error: config.toml: [kafka] bootstrap_servers is missing\n  help: set it, for example \
             bootstrap_servers = \"localhost:9092\", or set OUTBOX_RELAY__KAFKA__BOOTSTRAP_SERVERS",
        ]
    );
}

#[test]
fn values_that_cannot_be_meant_are_findings() {
    for (lines, expected) in [
        ("[reaper]\ninbox_retention = '59s'", "[reaper] inbox_retention is 59s, but must be from 1m to "),
        (
            "[reaper]\nidempotency_retention = '1s'",
            "[reaper] idempotency_retention is 1s, but must be from 1m to ",
        ),
        (
            "[relay]\nbatch_bytes = '1GiB'\nworkers = 9",
            "workers times batch_bytes is 9GiB, but must be at most 8GiB",
        ),
        (
            "[outbox]\ntopic = '{aggregate_type}'",
            "warning: config.toml:6: [outbox] topic is \"{aggregate_type}\", so anyone",
        ),
    ] {
        let findings = with(&format!("{lines}\n")).findings();
        assert!(findings.len() == 1 && findings[0].contains(expected), "{lines}: {findings:?}");
        assert!(findings[0].contains("config.toml:6: "), "{lines}: {findings:?}");
    }
}

#[test]
fn values_of_the_wrong_type_or_out_of_range_are_findings() {
    for (line, expected) in [
        ("[relay]\nbatch_size = 0", "[relay] batch_size is 0, but must be from 1 to 100000"),
        ("[relay]\nbatch_size = -5", "[relay] batch_size is -5, but must be from 1 to 100000"),
        ("[relay]\nbatch_size = '500'", "[relay] batch_size must be a whole number, not a string"),
        ("[relay]\nbatch_size = 1.5", "[relay] batch_size must be a whole number, not a fraction"),
        ("[relay]\nbatch_size = 99999999999999999999", "not an integer with more than 64 bits"),
        ("[relay]\nworkers = 65", "[relay] workers is 65, but must be from 1 to 64"),
        (
            "[relay]\nbatch_bytes = '8 MiBs'",
            "[relay] batch_bytes is \"8 MiBs\", which is not a size such as \"8MiB\"",
        ),
        ("[relay]\nbatch_bytes = 1000", "[relay] batch_bytes is 1000B, but must be from 64KiB to 1GiB"),
        ("[relay]\nbatch_bytes = -1", "[relay] batch_bytes is -1, but must be from 64KiB to 1GiB"),
        ("[relay]\nbatch_bytes = true", "[relay] batch_bytes must be a size, not a boolean"),
        (
            "[relay]\npoll_interval = 50",
            "write poll_interval = \"50s\" for seconds, or \"50ms\" for milliseconds",
        ),
        ("[relay]\npoll_interval = 'soon'", "[relay] poll_interval is \"soon\", which is not a duration"),
        ("[relay]\npoll_interval = '-5s'", "[relay] poll_interval is \"-5s\", which is not a duration"),
        ("[relay]\npoll_interval = '0s'", "[relay] poll_interval is 0s, but must be from 1ms to 1h"),
        ("[relay]\nshutdown_timeout = '10ms'", "[relay] shutdown_timeout is 10ms, but must be from 1s to 1h"),
        ("[reaper]\nenabled = 'yes'", "[reaper] enabled must be true or false, not a string"),
        ("[reaper]\nretention = 1979-05-27", "[reaper] retention must be a duration, not a date"),
        (
            "[outbox]\non_sent = 'marc'",
            "must be one of mark, delete\n  6 | on_sent = 'marc'\n  help: did you mean \"mark\"?",
        ),
        ("[outbox]\nheaders = ['id']", "[outbox] headers must be a table, not a list"),
        ("[outbox]\ntable = 'a b.c'", "[outbox] table: the character ' ' needs quotes"),
        ("[outbox]\ntopic = ''", "[outbox] topic: "),
        ("[outbox]\ntopic = 'events.{aggregate_type'", "[outbox] topic: "),
        ("[outbox]\ntopic = 'events.}{'", "[outbox] topic: "),
        (
            "[outbox]\ntopic = 'events.{event-type}'",
            "[outbox] topic: unknown placeholder {event-type} at position 8. The placeholders are {aggregate_type} and \
             {event_type}",
        ),
        (
            "[outbox]\ntopic = '{event_type}.{event_type}'",
            "[outbox] topic: second {event_type} at position 14. A placeholder can occur only once",
        ),
        (
            "[outbox]\ntopic_allow = '*'",
            "[outbox] topic_allow: a prefix needs at least one character before the *",
        ),
        ("[outbox]\ntopic_allow = 'a,,b'", "[outbox] topic_allow: a name is empty"),
        ("[outbox]\ntopic_allow = ['a']", "[outbox] topic_allow must be a string, not a list"),
        ("[outbox]\ntopic = '{aggregate_type}/{event_type}'", "[outbox] topic: character '/' at position 17"),
        (
            "[admin]\nlisten = 'localhost'",
            "[admin] listen is \"localhost\", which is not an IP address with a port",
        ),
        (
            "[log]\nlevel = 'inof'",
            "[log] level: \"inof\" is not a level\n  6 | level = 'inof'\n  help: did you mean \"info\"?",
        ),
        ("[log]\nlevel = 'info,outbox_relay=loud'", "[log] level: \"loud\" is not a level"),
        ("[log]\nformat = 7", "[log] format must be a string, not an integer"),
    ] {
        let findings = with(line).findings();
        assert_eq!(findings.len(), 1, "{line}: {}", findings.join("\n"));
        assert!(findings[0].starts_with("error: config.toml:6: "), "{line}: {}", findings[0]);
        assert!(findings[0].contains(expected), "{line}: {}", findings[0]);
    }
}

#[test]
fn all_findings_are_reported_at_once_in_the_order_of_the_file() {
    let case = Case::new(
        "[log]\nformat = 'xml'\n[relay]\nworkers = 0\nbatch_sise = 1\n[postgres]\nurl = 'mysql://localhost'\n",
    )
    .env("OUTBOX_RELAY__RELAY__WORKRES", "3");
    let places: Vec<_> =
        case.findings().iter().map(|text| text.split(": ").nth(1).unwrap().to_owned()).collect();
    let expected = [
        "config.toml:2",
        "config.toml:4",
        "config.toml:5",
        "config.toml:7",
        "config.toml",
        "environment variable OUTBOX_RELAY__RELAY__WORKRES",
    ];
    assert_eq!(places, expected, "{}", case.findings().join("\n"));
}

#[test]
fn valid_but_risky_settings_are_warnings() {
    for (line, expected) in [
        ("[relay]\nshutdown_timeout = '5s'", "shutdown_timeout is shorter than publish_timeout"),
        ("[relay]\ntakeover_timeout = '1s'", "takeover_timeout is so short"),
        (
            "[kafka.properties]\n'ssl.endpoint.identification.algorithm' = 'none'",
            "any host can impersonate a broker",
        ),
        (
            "[kafka.properties]\n'ssl.endpoint.identification.algorithm' = ' NONE'",
            "any host can impersonate a broker",
        ),
        (
            "[kafka.properties]\n'enable.ssl.certificate.verification' = 0",
            "any host can impersonate a broker",
        ),
        ("[kafka.properties]\n'statistics.interval.ms' = 0", "does not notice quotas of Kafka in time"),
        ("[kafka.properties]\n'statistics.interval.ms' = 10001", "does not notice quotas of Kafka in time"),
        (
            "[kafka.properties]\n'enable.ssl.certificate.verification' = 'f'",
            "any host can impersonate a broker",
        ),
        (
            "[kafka.properties]\n'enable.ssl.certificate.verification' = false",
            "any host can impersonate a broker",
        ),
    ] {
        let config = with(line).load().unwrap();
        let warnings: Vec<_> = config.warnings.iter().collect();
        assert_eq!(warnings.len(), 1, "{line}: {}", config.warnings);
        assert_eq!(warnings[0].severity, Severity::Warning);
        assert!(warnings[0].to_string().contains(expected), "{line}: {}", warnings[0]);
    }
}

#[test]
fn the_admin_port_can_be_turned_off() {
    for off in ["", "off"] {
        assert_eq!(with(&format!("[admin]\nlisten = '{off}'")).load().unwrap().admin.listen, None);
    }
}

#[test]
fn an_admin_port_that_is_open_to_other_hosts_is_a_warning() {
    let default = with("").load().unwrap().admin.listen.unwrap();
    assert!(default.ip().is_loopback(), "{default}");
    for (listen, warned) in [
        ("127.0.0.1:10187", false),
        ("[::1]:10187", false),
        ("off", false),
        ("0.0.0.0:10187", true),
        ("[::]:10187", true),
    ] {
        let case = with(&format!("[admin]\nlisten = '{listen}'\n"));
        let findings = case.findings();
        assert_eq!(findings.len(), usize::from(warned), "{listen}: {}", findings.join("\n"));
        let warning = "warning: config.toml:6: [admin] listen is open to other hosts";
        assert!(!warned || findings[0].starts_with(warning), "{listen}: {}", findings[0]);
        assert!(case.load().is_ok(), "{listen}");
    }
}
