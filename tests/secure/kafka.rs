//! A Kafka cluster with one listener for each way to log in.

use std::fmt::Write;
use std::time::Duration;

use crate::support::certificates::{Files, Identity, authority};
use crate::support::command::Ended;
use crate::support::database::run;
use crate::support::kafka_server::{KafkaServer, Settings};
use crate::support::outbox::Outbox;
use crate::support::relay::Relay;
use crate::support::token_endpoint::{AUDIENCE, CLIENT, TokenEndpoint};
use crate::support::wait::STALLED;

pub const USER: &str = "relay";
pub const PASSWORD: &str = "an old password";
pub const CLIENT_SECRET: &str = "an old secret";
/// How long a login with a token lasts before the broker requires another one.
const LOGIN_LASTS_MS: u32 = 20_000;

/// The broker, an outbox whose relays use it, and the files of its clients. The tests themselves use a listener without
/// authentication.
pub struct Secured {
    pub kafka: KafkaServer,
    pub outbox: Outbox,
    pub files: Files,
    /// Signs the certificates of the broker, of the clients and of the token endpoint.
    pub authority: Identity,
    pub endpoint: TokenEndpoint,
}

impl Secured {
    /// Starts a broker with these listeners.
    pub async fn start(test: &str, listeners: &[&str], token_lifetime: Duration) -> Self {
        let authority = authority("the authority");
        let files = Files::new();
        let broker = authority.server(&["localhost"]);
        files.put("broker.pem", broker.store_pem());
        files.put("other-host.pem", authority.server(&["kafka.example"]).store_pem());
        files.put("expired.pem", authority.expired_server(&["localhost"]).store_pem());
        files.put("clients.pem", authority.cert_pem());
        let endpoint = TokenEndpoint::start(&broker, CLIENT_SECRET, token_lifetime).await;
        files.put("keys.json", endpoint.keys());
        let kafka = KafkaServer::start_with(settings(&files, listeners)).await;
        let mut outbox = Outbox::on(&kafka.cluster(), test).await;
        outbox.create_topic("order", 3).await;
        let secured = Self { kafka, outbox, files, authority, endpoint };
        secured.give_to_clients(&secured.authority);
        secured.files.put("password", PASSWORD);
        secured.files.put("client-secret", CLIENT_SECRET);
        secured
    }

    /// Gives the clients this authority to trust, and a certificate signed by it.
    pub fn give_to_clients(&self, authority: &Identity) {
        self.files.put("ca.pem", authority.cert_pem());
        let client = authority.client(USER);
        self.files.put("client.pem", client.cert_pem());
        self.files.put("client.key", client.key_pem());
    }

    pub fn file(&self, name: &str) -> String {
        self.files.path(name).to_str().unwrap().to_owned()
    }

    /// A relay that connects to this listener with TLS and has these additional properties.
    pub fn relay(&self, listener: &str, properties: &[(&str, &str)]) -> Relay {
        self.relay_of(&self.outbox, listener, properties)
    }

    /// The same for another outbox.
    pub fn relay_of(&self, outbox: &Outbox, listener: &str, properties: &[(&str, &str)]) -> Relay {
        let relay = outbox
            .relay()
            .set("kafka", "bootstrap_servers", self.kafka.listener(listener))
            .set_kafka_property("security.protocol", "ssl")
            .set_kafka_property("broker.address.family", "v4")
            .set_kafka_property("ssl.ca.location", &self.file("ca.pem"));
        properties.iter().fold(relay, |relay, (name, value)| relay.set_kafka_property(name, value))
    }

    /// A relay that logs in with a client certificate.
    pub fn by_certificate(&self, outbox: &Outbox) -> Relay {
        self.relay_of(outbox, "MUTUAL", &[])
            .set_kafka_property("ssl.certificate.location", &self.file("client.pem"))
            .set_kafka_property("ssl.key.location", &self.file("client.key"))
    }

    /// A relay that logs in with a user and a password.
    pub fn by_password(&self, mechanism: &str) -> Relay {
        self.relay(
            "SASL",
            &[("security.protocol", "sasl_ssl"), ("sasl.mechanism", mechanism), ("sasl.username", USER)],
        )
        .set_kafka_property("sasl.password_file", &self.file("password"))
    }

    /// A relay that logs in with tokens.
    pub fn by_token(&self) -> Relay {
        let set = |relay: Relay, key: &str, value: &str| relay.set_inner("kafka", "oauth", key, value);
        let relay = self.relay("OAUTH", &[("security.protocol", "sasl_ssl")]);
        let relay = set(relay, "token_url", &self.endpoint.url());
        let relay = set(relay, "client_id", CLIENT);
        let relay = set(relay, "client_secret_file", &self.file("client-secret"));
        let relay = set(relay, "scope", "events");
        set(relay, "ca_location", &self.file("ca.pem"))
    }

    /// Checks that a row is relayed. `run --once` would wait only 5 s for a broker that has just started.
    pub async fn assert_works(&self, what: &str, relay: Relay) {
        let sql =
            "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', '1', 'x')";
        run(&self.outbox.client, sql).await;
        let mut relay = relay.start().await;
        self.outbox.wait_until_drained(STALLED).await;
        assert!(relay.stop().await.success(), "{what}: {}", relay.log());
        println!("{what}: works");
    }
}

/// The result of `check-config --connect` for this relay.
pub async fn checked(relay: Relay) -> Ended {
    tokio::task::spawn_blocking(move || relay.command(&["check-config", "--connect"])).await.unwrap()
}

fn settings(files: &Files, listeners: &[&str]) -> Settings {
    let file = |name: &str| files.path(name).to_str().unwrap().to_owned();
    let mut lines = format!("ssl.truststore.type=PEM\nssl.truststore.location={}\n", file("clients.pem"));
    let mut named = Vec::new();
    for (name, protocol, store) in [
        ("TLS", "SSL", "broker.pem"),
        ("MUTUAL", "SSL", "broker.pem"),
        ("OTHERHOST", "SSL", "other-host.pem"),
        ("EXPIRED", "SSL", "expired.pem"),
        ("SASL", "SASL_SSL", "broker.pem"),
        ("OAUTH", "SASL_SSL", "broker.pem"),
    ] {
        if listeners.contains(&name) {
            named.push((name, protocol));
            let prefix = format!("listener.name.{}", name.to_lowercase());
            let store = file(store);
            write!(lines, "{prefix}.ssl.keystore.type=PEM\n{prefix}.ssl.keystore.location={store}\n")
                .unwrap();
        }
    }
    let module = |package: &str| format!("org.apache.kafka.common.security.{package} required");
    let (plain, scram) = (module("plain.PlainLoginModule"), module("scram.ScramLoginModule"));
    let (bearer, validator) =
        (module("oauthbearer.OAuthBearerLoginModule"), "OAuthBearerValidatorCallbackHandler");
    let keys = format!("file://{}", file("keys.json"));
    write!(
        lines,
        "listener.name.mutual.ssl.client.auth=required
listener.name.sasl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl.plain.sasl.jaas.config={plain} user_{USER}=\"{PASSWORD}\";
listener.name.sasl.scram-sha-256.sasl.jaas.config={scram};
listener.name.sasl.scram-sha-512.sasl.jaas.config={scram};
listener.name.oauth.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.oauth.oauthbearer.sasl.jaas.config={bearer};
listener.name.oauth.oauthbearer.sasl.server.callback.handler.class=org.apache.kafka.common.security.oauthbearer.{validator}
listener.name.oauth.oauthbearer.connections.max.reauth.ms={LOGIN_LASTS_MS}
sasl.oauthbearer.jwks.endpoint.url={keys}
sasl.oauthbearer.expected.audience={AUDIENCE}
"
    )
    .unwrap();
    let users = ["SCRAM-SHA-256", "SCRAM-SHA-512"].map(|mechanism| {
        ["--add-scram".to_owned(), format!("{mechanism}=[name={USER},password={PASSWORD}]")]
    });
    Settings {
        listeners: named,
        lines,
        format: users.concat(),
        system_properties: vec![
            format!("-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}"),
            format!("-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={}", file("keys.json")),
        ],
        ..Settings::default()
    }
}
