//! Every way to log in to Kafka works. For every mistake, the error message states the cause and the fix.

use futures_util::{StreamExt, stream};
use std::time::Duration;

use crate::kafka::{CLIENT_SECRET, PASSWORD, Secured, checked};
use crate::support::certificates::authority;
use crate::support::relay::Relay;
use crate::support::token_endpoint::{Answers, TokenEndpoint};

const ALL: &[&str] = &["TLS", "MUTUAL", "OTHERHOST", "EXPIRED", "SASL", "OAUTH"];
const LIFETIME: Duration = Duration::from_secs(300);
/// The configuration or a file must be fixed.
const CONFIG_ERROR: i32 = 78;
const UNAVAILABLE: i32 = 69;

/// A mistake, the exit code of `check-config --connect`, and the expected texts in its output.
type Mistake = (&'static str, Relay, i32, &'static [&'static str]);

#[tokio::test]
async fn every_way_to_log_in_to_kafka_works_and_each_mistake_reports_the_cause_and_the_fix() {
    let secured = Secured::start("logins", ALL, LIFETIME).await;
    secured.assert_works("TLS", secured.relay("TLS", &[])).await;
    secured.assert_works("mutual TLS", secured.by_certificate(&secured.outbox)).await;
    for mechanism in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] {
        secured.assert_works(mechanism, secured.by_password(mechanism)).await;
    }
    secured.assert_works("OAUTHBEARER", secured.by_token()).await;
    let by_post = secured.by_token().set_inner("kafka", "oauth", "client_authentication", "post");
    secured.assert_works("OAUTHBEARER, the secret in the body", by_post).await;

    let broken = Broken::start(&secured).await;
    let mistakes =
        [tls_mistakes(&secured), password_mistakes(&secured), token_mistakes(&secured, &broken)].concat();
    // Each must log in within the 5 s for which a command waits.
    stream::iter(mistakes).map(assert_reported).buffer_unordered(2).collect::<()>().await;
    secured.outbox.drop_database().await;
}

fn mistake(what: &'static str, relay: Relay, code: i32, said: &'static [&'static str]) -> Mistake {
    (what, relay, code, said)
}

async fn assert_reported((what, relay, code, said): Mistake) {
    let ended = checked(relay).await;
    println!("{what}: exit {}\n  {}", ended.code, ended.stdout.trim().replace('\n', "\n  "));
    ended.fails(code, said);
    let shown = format!("{}{}", ended.stdout, ended.stderr);
    for secret in [PASSWORD, CLIENT_SECRET, "a wrong password", "a wrong secret", "secrets of the provider"] {
        assert!(!shown.contains(secret), "{what}: {shown}");
    }
}

fn tls_mistakes(secured: &Secured) -> Vec<Mistake> {
    let other = authority("another authority");
    let other_ca = secured.files.put("other.pem", other.cert_pem());
    let stranger = other.client("relay");
    let stranger = (
        secured.files.put("stranger.pem", stranger.cert_pem()),
        secured.files.put("stranger.key", stranger.key_pem()),
    );
    let plain = secured.relay("TLS", &[("security.protocol", "plaintext")]);
    let to_plain =
        secured.relay("TLS", &[]).set("kafka", "bootstrap_servers", secured.kafka.cluster().bootstrap);
    vec![
        mistake(
            "wrong authority",
            secured.relay("TLS", &[("ssl.ca.location", &other_ca)]),
            CONFIG_ERROR,
            &[
                "(reason: tls)",
                "unable to get local issuer certificate",
                "trust the authority that signed",
                "check ssl.*",
            ],
        ),
        mistake(
            "wrong host name",
            secured.relay("OTHERHOST", &[]),
            CONFIG_ERROR,
            &["(reason: tls)", "hostname mismatch", "connect with a name that is in the certificate"],
        ),
        mistake(
            "expired certificate",
            secured.relay("EXPIRED", &[]),
            CONFIG_ERROR,
            &["(reason: tls)", "certificate has expired", "renew the server certificate"],
        ),
        mistake(
            "missing client certificate",
            secured.relay("MUTUAL", &[]),
            CONFIG_ERROR,
            &["(reason: tls)", "configure a client certificate", "check ssl.*"],
        ),
        mistake(
            "client certificate of an unknown authority",
            secured.relay(
                "MUTUAL",
                &[("ssl.certificate.location", &stranger.0), ("ssl.key.location", &stranger.1)],
            ),
            CONFIG_ERROR,
            &["(reason: tls)", "certificate", "check ssl.*"],
        ),
        mistake(
            "no TLS",
            plain,
            UNAVAILABLE,
            &["(reason: brokers-down)", "security.protocol in [kafka.properties]"],
        ),
        mistake(
            "TLS to a port without TLS",
            to_plain,
            UNAVAILABLE,
            &["(reason: brokers-down)", "PLAINTEXT broker listener"],
        ),
    ]
}

fn password_mistakes(secured: &Secured) -> Vec<Mistake> {
    let wrong = secured.files.put("wrong", "a wrong password");
    let wrong =
        |mechanism: &str| secured.by_password(mechanism).set_kafka_property("sasl.password_file", &wrong);
    let says: &'static [&'static str] = &[
        "(reason: authentication)",
        "Authentication failed",
        "the credentials in [kafka.properties]",
        "reloaded at each attempt",
    ];
    let not_offered = secured.by_password("SCRAM-SHA-512");
    let not_offered = not_offered.set("kafka", "bootstrap_servers", secured.kafka.listener("OAUTH"));
    vec![
        mistake("wrong password, PLAIN", wrong("PLAIN"), CONFIG_ERROR, says),
        mistake("wrong password, SCRAM-SHA-256", wrong("SCRAM-SHA-256"), CONFIG_ERROR, says),
        mistake("wrong password, SCRAM-SHA-512", wrong("SCRAM-SHA-512"), CONFIG_ERROR, says),
        mistake(
            "unsupported mechanism",
            not_offered,
            CONFIG_ERROR,
            &["(reason: authentication)", "OAUTHBEARER", "check security.protocol, sasl.*"],
        ),
    ]
}

/// Token endpoints that do not work.
struct Broken {
    forging: TokenEndpoint,
    failing: TokenEndpoint,
    silent: TokenEndpoint,
    foreign: TokenEndpoint,
}

impl Broken {
    async fn start(secured: &Secured) -> Self {
        let shown = secured.authority.server(&["localhost"]);
        let start = async |answers: Answers| {
            let endpoint = TokenEndpoint::start(&shown, CLIENT_SECRET, LIFETIME).await;
            endpoint.change(|state| state.answers = answers);
            endpoint
        };
        let foreign = authority("another authority").server(&["localhost"]);
        Self {
            forging: start(Answers::ForgedTokens).await,
            failing: start(Answers::Error).await,
            silent: start(Answers::Nothing).await,
            foreign: TokenEndpoint::start(&foreign, CLIENT_SECRET, LIFETIME).await,
        }
    }
}

fn token_mistakes(secured: &Secured, broken: &Broken) -> Vec<Mistake> {
    let at = |url: String| secured.by_token().set_inner("kafka", "oauth", "token_url", url);
    let wrong = secured.files.put("wrong-secret", "a wrong secret");
    let unreachable = "https://localhost:1/token".to_owned();
    let elsewhere = at(secured.endpoint.url().replace("/oauth2/token", "/token"));
    vec![
        mistake(
            "wrong client secret",
            secured.by_token().set_inner("kafka", "oauth", "client_secret_file", wrong),
            CONFIG_ERROR,
            &[
                "(reason: token)",
                "401 Unauthorized, invalid_client. Check client_id and the client secret",
                "[kafka.oauth]",
            ],
        ),
        mistake(
            "unreachable token endpoint",
            at(unreachable),
            CONFIG_ERROR,
            &["(reason: token)", "it is unreachable", "Connection refused"],
        ),
        mistake(
            "wrong path",
            elsewhere,
            CONFIG_ERROR,
            &["(reason: token)", "400 Bad Request, invalid_request"],
        ),
        mistake(
            "endpoint that fails",
            at(broken.failing.url()),
            CONFIG_ERROR,
            &["(reason: token)", "500 Internal Server Error"],
        ),
        mistake(
            "endpoint that does not answer",
            at(broken.silent.url()),
            CONFIG_ERROR,
            &["(reason: token)", "no response within 10s"],
        ),
        mistake(
            "endpoint with a certificate of an unknown authority",
            at(broken.foreign.url()),
            CONFIG_ERROR,
            &["(reason: token)", "unable to get local issuer certificate", "[kafka.oauth] ca_location"],
        ),
        mistake(
            "token with a wrong signature",
            at(broken.forging.url()),
            CONFIG_ERROR,
            &["(reason: authentication)", "[kafka.oauth]"],
        ),
    ]
}
