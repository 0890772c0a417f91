//! `[kafka.aws]`.

use super::{Case, LEAST, with};
use crate::config::{Config, Effect, changes};

const SASL: &str = "[kafka.properties]\n'security.protocol' = 'sasl_ssl'\n";
const REGION: &str = "[kafka.aws]\nregion = 'eu-central-1'\n";
const ROLE: &str = "role_arn = 'arn:aws:iam::123456789012:role/outbox-relay'\n";

fn loaded(text: &str) -> Config {
    with(text).load().unwrap_or_else(|findings| panic!("{text}\n{findings}"))
}

fn the_only_finding(text: &str) -> String {
    let mut findings = with(text).findings();
    assert_eq!(findings.len(), 1, "{text}\n{}", findings.join("\n"));
    findings.remove(0)
}

#[test]
fn region_is_enough_and_implies_the_mechanism() {
    let aws = loaded(&format!("{SASL}{REGION}")).kafka.aws.unwrap();
    assert_eq!((aws.region.as_str(), aws.role_session_name.as_str()), ("eu-central-1", "outbox-relay"));
    assert_eq!((aws.role_arn, aws.external_id), (None, None));
    assert!(loaded(&SASL.replace("sasl_ssl", "ssl")).kafka.aws.is_none());
    // A default does not turn the section on.
    let unused = format!("{}[kafka.aws]\nrole_session_name = 'x1'\n", SASL.replace("sasl_ssl", "ssl"));
    assert!(loaded(&unused).kafka.aws.is_none());
}

#[test]
fn role_can_be_assumed_with_a_session_name_and_an_external_id() {
    let text = format!("{SASL}{REGION}{ROLE}role_session_name = 'relay@host-1'\nexternal_id = 'a/b:12'\n");
    let case = with(&text).env("OUTBOX_RELAY__KAFKA__AWS__REGION", "us-gov-west-1");
    let aws = case.load().unwrap().kafka.aws.unwrap();
    assert_eq!(aws.region, "us-gov-west-1");
    assert_eq!(aws.role_arn.as_deref(), Some("arn:aws:iam::123456789012:role/outbox-relay"));
    assert_eq!(
        (aws.role_session_name.as_str(), aws.external_id.as_deref()),
        ("relay@host-1", Some("a/b:12"))
    );
}

#[test]
fn settings_are_shown_and_changes_need_a_restart() {
    let shown = |text: &str| -> Vec<(String, String)> {
        let shown = loaded(text).shown().into_iter().filter(|setting| setting.section == "kafka.aws");
        shown.map(|setting| (setting.key, setting.value)).collect()
    };
    assert!(shown("").is_empty());
    let text = |text: &str| text.to_owned();
    let expected = [("region", "eu-central-1"), ("role_session_name", "outbox-relay")];
    let expected = expected.map(|(name, value)| (text(name), text(value)));
    assert_eq!(shown(&format!("{SASL}{REGION}")), expected);

    let running = loaded(&format!("{SASL}{REGION}"));
    let other = loaded(&format!("{SASL}{REGION}{ROLE}").replace("eu-central-1", "eu-west-1"));
    let found = changes(&running, &other);
    let names: Vec<_> = found.iter().map(|change| (change.section, change.key.as_str())).collect();
    assert_eq!(names, [("kafka.aws", "region"), ("kafka.aws", "role_arn")]);
    assert!(found.iter().all(|change| change.effect == Effect::Restart), "{found:?}");
    assert_eq!(running.reloaded(&other).kafka, running.kafka);
}

#[test]
fn kafka_secrets_for_another_role_wait_for_the_restart() {
    let text = |role: &str, password: &str| {
        format!("{SASL}'ssl.key.password' = '{password}'\n{REGION}role_arn = '{role}'\n")
    };
    let running = loaded(&text("arn:aws:iam::123456789012:role/a", "old"));
    let other = loaded(&text("arn:aws:iam::123456789012:role/b", "new"));
    assert!(changes(&running, &other).iter().all(|change| change.effect == Effect::Restart));
    assert!(changes(&running, &running.reloaded(&other)).is_empty());
}

#[test]
fn invalid_settings_are_findings() {
    for (line, expected) in [
        ("region = 'Frankfurt'", "[kafka.aws] region is not the code of an AWS region"),
        ("region = 'eu-central-'", "region is not the code"),
        ("region = 'central-1'", "region is not the code"),
        ("region = 'eu-central-1.evil.example/x-1'", "region is not the code"),
        ("region = ''", "region is not the code"),
        ("region = 1", "[kafka.aws] region must be a string, not an integer"),
        ("region = 'eu-central-1'\nrole_arn = 'outbox-relay'", "role_arn is not the ARN of an IAM role"),
        ("region = 'eu-central-1'\nrole_arn = 'arn:aws:iam::1:role/x'", "role_arn is not the ARN"),
        ("region = 'eu-central-1'\nrole_arn = 'arn:aws:iam::123456789012:user/x'", "role_arn is not the ARN"),
        ("region = 'eu-central-1'\nexternal_id = 'x'", "[kafka.aws] external_id is not a valid external ID"),
        ("region = 'eu-central-1'\nexternal_id = 'xx'", "external_id has no effect without role_arn"),
        (
            "region = 'eu-central-1'\nrole_session_name = 'xx'",
            "role_session_name has no effect without role_arn",
        ),
        ("region = 'eu-central-1'\nprofile = 'x'", "unknown key `profile` in [kafka.aws]"),
    ] {
        let text = format!("{SASL}[kafka.aws]\n{line}\n");
        let findings = with(&text).findings();
        let found = findings.iter().filter(|finding| finding.contains(expected)).count();
        assert_eq!(found, 1, "{text}\n{}", findings.join("\n"));
        assert!(findings.iter().all(|finding| finding.contains("\n  help: ")), "{}", findings.join("\n"));
    }
    let role = the_only_finding(&format!("{SASL}[kafka.aws]\n{ROLE}"));
    assert!(role.contains("[kafka.aws] region is missing"), "{role}");
    let session = format!("{SASL}{REGION}{ROLE}role_session_name = 'a b'\n");
    assert!(the_only_finding(&session).contains("role_session_name is not a valid session name"));
}

#[test]
fn conflicting_logins_are_findings() {
    let oauth = "[kafka.oauth]\ntoken_url = 'https://idp.example/token'\nclient_id = 'relay'\nclient_secret = 'hunter2'\n";
    for (text, expected) in [
        (format!("{SASL}{oauth}{REGION}"), "both [kafka.oauth] and [kafka.aws] are set"),
        (REGION.to_owned(), "[kafka.aws] has no effect while security.protocol is plaintext"),
        (
            format!("{}{REGION}", SASL.replace("sasl_ssl", "ssl")),
            "[kafka.aws] has no effect while security.protocol is ssl",
        ),
        (
            format!("{SASL}'sasl.mechanism' = 'SCRAM-SHA-512'\n{REGION}"),
            "[kafka.aws] has no effect while `sasl.mechanism` is SCRAM-SHA-512",
        ),
        (
            format!("{SASL}'sasl.username' = 'relay'\n{REGION}"),
            "Kafka property `sasl.username` has no effect with [kafka.aws]",
        ),
        (
            format!("{SASL}'sasl.password' = 'hunter2'\n{REGION}"),
            "Kafka property `sasl.password` has no effect with [kafka.aws]",
        ),
    ] {
        let finding = the_only_finding(&text);
        assert!(finding.starts_with("error: ") && finding.contains(expected), "{text}\n{finding}");
        assert!(finding.contains("\n  help: ") && !finding.contains("hunter2"), "{finding}");
    }
    let file = with(&format!("{SASL}'sasl.password_file' = 'pw'\n{REGION}")).file("pw", "hunter2").findings();
    assert_eq!(file.len(), 1, "{file:?}");
    assert!(file[0].contains("config.toml:7: Kafka property `sasl.password` has no effect"), "{file:?}");
    let plain =
        with(&format!("{}{REGION}", SASL.replace("sasl_ssl", "sasl_plaintext"))).findings().join("\n");
    assert!(plain.contains("error: config.toml:8: [kafka.aws] requires TLS"), "{plain}");
}

#[test]
fn region_is_compared_with_the_names_of_the_brokers() {
    let msk = |region: &str| {
        let brokers = format!("b-1.demo.abc123.c2.kafka.{region}.amazonaws.com:9098");
        Case::new(&format!("{}{SASL}{REGION}", LEAST.replace("localhost:9092", &brokers)))
    };
    assert!(msk("eu-central-1").findings().is_empty(), "{:?}", msk("eu-central-1").findings());
    let findings = msk("eu-west-1").findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].contains("region is eu-central-1, but the brokers are in eu-west-1"), "{findings:?}");
    assert!(findings[0].ends_with("help: set region = \"eu-west-1\""), "{findings:?}");
}
