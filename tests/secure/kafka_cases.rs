//! Every way to log in to Kafka works, and every mistake says what is wrong and what to do.

use futures_util::future::join_all;
use std::time::Duration;

use crate::kafka::{CLIENT_SECRET, PASSWORD, Secured, checked};
use crate::support::certificates::authority;
use crate::support::relay::Relay;
use crate::support::token_endpoint::{Answers, TokenEndpoint};

const ALL: &[&str] = &["TLS", "MUTUAL", "OTHERHOST", "EXPIRED", "SASL", "OAUTH"];
const LIFETIME: Duration = Duration::from_secs(300);
/// Needs another configuration, or another file; or a server that answers.
const MEND: i32 = 78;
const UNAVAILABLE: i32 = 69;

/// One mistake, the exit code of `check-config --connect`, and what it has to say.
type Mistake = (&'static str, Relay, i32, &'static [&'static str]);

#[tokio::test]
async fn every_way_to_log_in_to_kafka_works_and_each_mistake_says_what_is_wrong_and_what_to_do() {
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
    join_all(mistakes.into_iter().map(assert_said)).await;
    secured.outbox.drop_database().await;
}

fn mistake(what: &'static str, relay: Relay, code: i32, said: &'static [&'static str]) -> Mistake {
    (what, relay, code, said)
}

async fn assert_said((what, relay, code, said): Mistake) {
    let ended = checked(relay).await;
    println!("{what}: exit {}\n  {}", ended.code, ended.stdout.trim().replace('\n', "\n  "));
    ended.fails(code, said);
    let shown = format!("{}{}", ended.stdout, ended.stderr);
    for secret in [PASSWORD, CLIENT_SECRET, "a wrong password", "a wrong secret", "secrets of the provider"] {
        assert!(!shown.contains(secret), "{what}: {shown}");
    }
}

fn tls_mistakes(secured: &Secured) -> Vec<Mistake> {
    let other = authority("somebody else");
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
            "a wrong authority",
            secured.relay("TLS", &[("ssl.ca.location", &other_ca)]),
            MEND,
            &[
                "(tls)",
                "unable to get local issuer certificate",
                "trust the authority that signed",
                "check ssl.*",
            ],
        ),
        mistake(
            "a wrong host name",
            secured.relay("OTHERHOST", &[]),
            MEND,
            &["(tls)", "hostname mismatch", "connect with a name that is in the certificate"],
        ),
        mistake(
            "an expired certificate",
            secured.relay("EXPIRED", &[]),
            MEND,
            &["(tls)", "certificate has expired", "renew the server certificate"],
        ),
        mistake(
            "a missing client certificate",
            secured.relay("MUTUAL", &[]),
            MEND,
            &["(tls)", "configure a client certificate", "check ssl.*"],
        ),
        mistake(
            "a client certificate of a stranger",
            secured.relay(
                "MUTUAL",
                &[("ssl.certificate.location", &stranger.0), ("ssl.key.location", &stranger.1)],
            ),
            MEND,
            &["(tls)", "certificate", "check ssl.*"],
        ),
        mistake(
            "without TLS",
            plain,
            UNAVAILABLE,
            &["(brokers-down)", "security.protocol in [kafka.properties]"],
        ),
        mistake(
            "TLS to a port without",
            to_plain,
            UNAVAILABLE,
            &["(brokers-down)", "PLAINTEXT broker listener"],
        ),
    ]
}

fn password_mistakes(secured: &Secured) -> Vec<Mistake> {
    let wrong = secured.files.put("wrong", "a wrong password");
    let wrong =
        |mechanism: &str| secured.by_password(mechanism).set_kafka_property("sasl.password_file", &wrong);
    let says: &'static [&'static str] = &[
        "(authentication)",
        "Authentication failed",
        "the credentials in [kafka.properties]",
        "reloaded at each attempt",
    ];
    let not_offered = secured.by_password("SCRAM-SHA-512");
    let not_offered = not_offered.set("kafka", "bootstrap_servers", secured.kafka.listener("OAUTH"));
    vec![
        mistake("a wrong password, PLAIN", wrong("PLAIN"), MEND, says),
        mistake("a wrong password, SCRAM-SHA-256", wrong("SCRAM-SHA-256"), MEND, says),
        mistake("a wrong password, SCRAM-SHA-512", wrong("SCRAM-SHA-512"), MEND, says),
        mistake(
            "a mechanism that is not offered",
            not_offered,
            MEND,
            &["(authentication)", "OAUTHBEARER", "check security.protocol, sasl.*"],
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
        let foreign = authority("somebody else").server(&["localhost"]);
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
    let nobody = "https://localhost:1/token".to_owned();
    let elsewhere = at(secured.endpoint.url().replace("/oauth2/token", "/token"));
    vec![
        mistake(
            "a wrong client secret",
            secured.by_token().set_inner("kafka", "oauth", "client_secret_file", wrong),
            MEND,
            &[
                "(token)",
                "401 Unauthorized, invalid_client. Check client_id and the client secret",
                "[kafka.oauth]",
            ],
        ),
        mistake(
            "no token endpoint",
            at(nobody),
            MEND,
            &["(token)", "it is unreachable", "Connection refused"],
        ),
        mistake("another path", elsewhere, MEND, &["(token)", "400 Bad Request, invalid_request"]),
        mistake(
            "an endpoint that fails",
            at(broken.failing.url()),
            MEND,
            &["(token)", "500 Internal Server Error"],
        ),
        mistake(
            "an endpoint that is silent",
            at(broken.silent.url()),
            MEND,
            &["(token)", "no response within 10s"],
        ),
        mistake(
            "an endpoint with a certificate of a stranger",
            at(broken.foreign.url()),
            MEND,
            &["(token)", "unable to get local issuer certificate", "[kafka.oauth] ca_location"],
        ),
        mistake(
            "a token that somebody else has signed",
            at(broken.forging.url()),
            MEND,
            &["(authentication)", "or [kafka.oauth]"],
        ),
    ]
}
