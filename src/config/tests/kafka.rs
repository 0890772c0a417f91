//! `[kafka]` and librdkafka properties.

use super::{Case, LEAST, with};
use crate::config::Property;

#[test]
fn properties_can_be_strings_integers_and_booleans_with_or_without_quotes() {
    let case = with(
        "[kafka.properties]\n'compression.type' = 'zstd'\n'linger.ms' = 1\nsocket.keepalive.enable = true\n\
         'ssl.ca.location' = 'ca.pem'\n",
    )
    .file("ca.pem", "");
    let config = case.load().unwrap();
    for (name, value) in
        [("compression.type", "zstd"), ("linger.ms", "1"), ("socket.keepalive.enable", "true")]
    {
        assert_eq!(config.kafka.properties[name], Property::Plain(value.into()));
    }
    let ca = case.path("ca.pem").to_str().unwrap().to_owned();
    assert_eq!(config.kafka.properties["ssl.ca.location"], Property::Plain(ca));
}

#[test]
fn a_key_that_is_written_in_two_ways_is_a_finding() {
    for (section, lines) in [
        ("kafka.properties", "'linger.ms' = 1\nlinger.ms = 2\n"),
        ("kafka.properties", "linger.ms = 2\n'linger.ms' = 1\n"),
        ("outbox.headers", "event_id = '{event_id}'\n'linger.ms' = 'a'\nlinger = { ms = 'b' }\n"),
    ] {
        let findings = with(&format!("[{section}]\n{lines}")).findings();
        let expected = format!("`linger.ms` is set twice in [{section}]");
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].contains(&expected), "{findings:?}");
    }
}

#[test]
fn invalid_properties_are_findings() {
    for (line, expected) in [
        ("acks = 1", "`acks` cannot be set: an event counts as sent only when all in-sync replicas have it"),
        ("'compresion.type' = 'lz4'", "not a librdkafka property\n  6 | compresion"),
        ("'compression.type' = 'lz5'", "`compression.type` is rejected by librdkafka: "),
        (
            "'compression.codec' = 'none'\n'compression.type' = 'gzip'",
            "`compression.codec` and `compression.type` are the same Kafka property",
        ),
        ("'linger.ms' = -1", "`linger.ms` is rejected by librdkafka: "),
        ("'linger.ms' = 0.5", "must be a string, an integer or a boolean"),
        ("'group.id' = 'x'", "`group.id` does not apply to producers"),
        ("'bootstrap.servers' = 'x'", "set [kafka] bootstrap_servers instead"),
        ("'ssl.ca.location' = 'absent.pem'", "ssl.ca.location: cannot read absent.pem: "),
        ("'security.protocol' = 'sasl_ssl'", "GSSAPI (the default of librdkafka), which is not supported"),
        ("'sasl.password' = 'x'", "has no effect while security.protocol is plaintext"),
        (
            "'sasl.oauthbearer.method' = 'oidc'",
            "set token_url, client_id, client_secret_file and scope in [kafka.oauth]",
        ),
        ("'sasl.oauthbearer.extensions' = 'a=b'", "tokens have no extensions"),
        ("'enable.sasl.oauthbearer.unsecure.jwt' = true", "an unsigned token provides no security"),
        ("'https.ca.location' = 'config.toml'", "set [kafka.oauth] ca_location instead"),
        ("'sasl.kerberos.principal' = 'x'", "GSSAPI (Kerberos) is not supported"),
        ("'test.mock.num.brokers' = 3", "`test.mock.num.brokers` does not apply to producers"),
        ("'dr_cb' = 'x'", "`dr_cb` is rejected by librdkafka: "),
    ] {
        let findings = with(&format!("[kafka.properties]\n{line}\n")).findings();
        assert_eq!(findings.len(), 1, "{line}: {}", findings.join("\n"));
        assert!(findings[0].starts_with("error: config.toml:6: "), "{line}: {}", findings[0]);
        let expected = expected
            .replace("6 | compresion", "6 | 'compresion.type' = …\n  help: did you mean `compression.type`?");
        assert!(findings[0].contains(&expected), "{line}: {}", findings[0]);
    }
}

#[test]
fn a_property_with_which_nothing_can_be_sent_in_time_is_a_finding() {
    for (property, timeout, expected) in [
        (
            "'linger.ms' = 900000",
            "45s",
            "`linger.ms` is 900000 (milliseconds), but must be below [relay] publish_timeout (45s)",
        ),
        ("'linger.ms' = '1000.0'", "1s", "`linger.ms` is 1000"),
        ("'queue.buffering.max.ms' = 45000", "45s", "`queue.buffering.max.ms` is 45000"),
        ("'retry.backoff.ms' = 60000", "45s", "`retry.backoff.ms` is 60000"),
        ("'retry.backoff.max.ms' = 60000", "45s", "`retry.backoff.max.ms` is 60000"),
        ("'reconnect.backoff.ms' = 60000", "45s", "`reconnect.backoff.ms` is 60000"),
        ("'reconnect.backoff.max.ms' = 60000", "45s", "`reconnect.backoff.max.ms` is 60000"),
        (
            "'request.timeout.ms' = 999",
            "45s",
            "`request.timeout.ms` is 999 (milliseconds), but must be at least 1000",
        ),
        ("'socket.timeout.ms' = 10", "45s", "`socket.timeout.ms` is 10 (milliseconds)"),
        (
            "'api.version.request.timeout.ms' = 5",
            "45s",
            "`api.version.request.timeout.ms` is 5 (milliseconds)",
        ),
    ] {
        let text = format!("[kafka.properties]\n{property}\n[relay]\npublish_timeout = '{timeout}'\n");
        let findings = with(&text).findings();
        assert_eq!(findings.len(), 1, "{property}: {findings:?}");
        assert!(findings[0].starts_with("error: config.toml:6: "), "{}", findings[0]);
        assert!(findings[0].contains(expected), "{}", findings[0]);
    }
    for property in [
        "'linger.ms' = 44999",
        "'linger.ms' = '0.5'",
        "'socket.timeout.ms' = 10000",
        "'statistics.interval.ms' = 10000",
    ] {
        assert_eq!(with(&format!("[kafka.properties]\n{property}\n")).findings(), [""; 0], "{property}");
    }
}

#[test]
fn a_remote_broker_without_tls_is_a_warning() {
    for (brokers, property, warns) in [
        ("kafka.example:9092", "", true),
        ("localhost:9092,kafka.example", "'security.protocol' = 'PLAINTEXT'", true),
        ("kafka.example", "'security.protocol' = ' plaintext'", true),
        ("kafka.example", "'security.protocol' = 'ssl'", false),
        ("localhost,127.0.0.9:1,[::1]:9092,PLAINTEXT://localhost:1", "", false),
    ] {
        let text = LEAST.replace("localhost:9092", brokers);
        let findings = Case::new(&format!("{text}[kafka.properties]\n{property}\n")).findings();
        assert_eq!(findings.len(), usize::from(warns), "{brokers}: {findings:?}");
        let expected = "warning: config.toml:4: security.protocol is plaintext, and a broker is remote";
        assert!(findings.iter().all(|finding| finding.starts_with(expected)), "{findings:?}");
    }
}

#[test]
fn brokers_must_be_hosts_with_ports() {
    for (list, good) in [
        ("k1:9092, k2:9092", true),
        ("k1", true),
        ("[::1]:9092", true),
        ("SSL://k1:9093", true),
        ("", false),
        ("k1:9092,", false),
        ("k1:9092;k2:9092", false),
        ("k1:port", false),
        ("k1:70000", false),
        ("k1:0", false),
        ("k\u{7}:9092", false),
        ("http://k1:9092/path", false),
    ] {
        let text = format!("[postgres]\nurl = 'host=localhost'\n[kafka]\nbootstrap_servers = {list:?}\n");
        let text = text.replace("\\u{7}", "\\u0007");
        assert_eq!(Case::new(&text).load().is_ok(), good, "{list}: {:?}", Case::new(&text).findings());
    }
}

#[test]
fn the_finding_for_a_property_in_kafka_names_its_section() {
    let text = "[postgres]\nurl = 'host=localhost'\n[kafka]\nbootstrap_servers = 'localhost'\n'compression.level' = 3\n";
    Case::new(text).assert_finding(
        "error: config.toml:5: unknown key `compression.level` in [kafka]\n  5 | 'compression.level' = 3\n  \
         help: properties of librdkafka belong to [kafka.properties]",
    );
}

#[test]
fn properties_that_are_not_a_table_are_a_finding() {
    let text = "[postgres]\nurl = 'host=localhost'\n[kafka]\nbootstrap_servers = 'localhost'\nproperties = 'linger.ms=1'\n";
    Case::new(text).assert_finding(
        "error: config.toml:5: [kafka] properties must be a table, not a string\n  5 | properties = …\n  \
         help: for example properties = { \"client.id\" = \"relay\" }",
    );
    let findings = with("").env("OUTBOX_RELAY__KAFKA__PROPERTIES", "linger.ms=1").findings();
    assert_eq!(findings.len(), 1, "{}", findings.join("\n"));
    assert!(findings[0].contains("no setting has this name"), "{}", findings[0]);
}
