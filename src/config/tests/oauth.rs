//! `[kafka.oauth]`.

use super::{Case, with};
use crate::config::{ClientAuthentication, SecretSource};

const SASL: &str = "[kafka.properties]\n'security.protocol' = 'sasl_ssl'\n";
const WHOLE: &str =
    "[kafka.oauth]\ntoken_url = 'https://idp.example/token'\nclient_id = 'relay'\nclient_secret = 's'\n";

#[test]
fn a_complete_section_implies_the_mechanism() {
    let text = format!("{SASL}{WHOLE}scope = 'a b'\naudience = 'kafka'\nclient_authentication = 'post'\n");
    let case = with(&text);
    assert!(case.findings().is_empty(), "{}", case.findings().join("\n"));
    let oauth = case.load().unwrap().kafka.oauth.unwrap();
    assert_eq!(oauth.token_url, "https://idp.example/token");
    assert_eq!((oauth.client_id.as_str(), oauth.scope.as_deref()), ("relay", Some("a b")));
    assert_eq!(
        (oauth.audience.as_deref(), oauth.client_authentication),
        (Some("kafka"), ClientAuthentication::Post)
    );
    assert!(with(SASL.replace("sasl_ssl", "ssl").as_str()).load().unwrap().kafka.oauth.is_none());
}

#[test]
fn settings_can_come_from_the_environment_and_the_secret_from_the_credentials() {
    let case = with(SASL)
        .env("OUTBOX_RELAY__KAFKA__OAUTH__TOKEN_URL", "http://127.0.0.1:8080/token")
        .env("OUTBOX_RELAY__KAFKA__OAUTH__CLIENT_ID", "relay")
        .env("OUTBOX_RELAY__KAFKA__OAUTH__CLIENT_SECRET_FILE", "secret")
        .credentials("credentials")
        .file("secret", "other")
        .file("credentials/secret", "hunter2\n");
    let config = case.load().unwrap();
    let source = config.kafka.oauth.as_ref().unwrap().client_secret.clone();
    assert_eq!(source, SecretSource::File(case.path("credentials/secret")));
    assert_eq!(source.read().unwrap().expose(), "hunter2");
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn invalid_settings_are_findings() {
    let whole = |change: (&str, &str)| format!("{SASL}{}", WHOLE.replace(change.0, change.1));
    for (text, expected) in [
        (whole(("token_url = 'https://idp.example/token'\n", "")), "[kafka.oauth] token_url is missing"),
        (whole(("client_id = 'relay'\n", "")), "[kafka.oauth] client_id is missing"),
        (whole(("client_secret = 's'\n", "")), "client_secret or client_secret_file is missing"),
        (whole(("https://idp.example", "http://idp.example")), "the secret would be sent unencrypted"),
        (whole(("https://", "https://u:hunter2@")), "contains a user or a password"),
        (whole(("https://idp.example", "http://localhost:1")), "uses http with a name"),
        (whole(("https://", "ftp://")), "uses neither https nor http"),
        (whole(("https://idp.example/token", "idp/token")), "token_url is not a URL"),
        (format!("{SASL}{WHOLE}ca_location = 'absent.pem'\n"), "ca_location: cannot read absent.pem: "),
        (format!("{SASL}{WHOLE}scopes = 'x'\n"), "unknown key `scopes` in [kafka.oauth]"),
        (WHOLE.to_owned(), "[kafka.oauth] has no effect while security.protocol is plaintext"),
        (
            format!("{SASL}'sasl.mechanism' = 'PLAIN'\n{WHOLE}"),
            "[kafka.oauth] has no effect while `sasl.mechanism` is PLAIN",
        ),
        (
            format!("{SASL}'sasl.mechanism' = 'OAUTHBEARER'\n"),
            "OAUTHBEARER, but neither [kafka.oauth] nor [kafka.aws] is set",
        ),
        (
            format!("{SASL}'sasl.mechanism' = 'GSSAPI'\n"),
            "GSSAPI (the default of librdkafka), which is not supported",
        ),
        ("[kafka.oath]\nx = 1\n".to_owned(), "did you mean `oauth`?"),
    ] {
        let findings = with(&text).findings();
        assert_eq!(findings.len(), 1, "{text}: {}", findings.join("\n"));
        assert!(findings[0].starts_with("error: "), "{text}: {}", findings[0]);
        assert!(findings[0].contains(expected), "{text}: {}", findings[0]);
        assert!(!findings[0].contains("hunter2"), "{}", findings[0]);
    }
}

#[test]
fn no_finding_shows_the_client_secret() {
    for line in ["client_secret = ['hunter2']", "client_secret 'hunter2'", "clientsecret = 'hunter2'"] {
        let shown = Case::new(&format!("[kafka.oauth]\n{line}\n")).findings().join("\n");
        assert!(!shown.is_empty() && !shown.contains("hunter2"), "{shown}");
    }
}
