//! The properties of librdkafka: which exist, which are secret, which cannot be set, and whether a value is valid.

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;

/// Checks whether this property may be set to this value.
///
/// # Errors
///
/// The reason, which never contains the value of a secret.
pub fn check(name: &str, value: &str) -> Result<(), String> {
    if let Some((_, reason)) = PROTECTED.iter().find(|(protected, _)| *protected == name) {
        return Err(format!("cannot be set: {reason}"));
    }
    let verdict = ClientConfig::new().set(name, value).create_native_config();
    match verdict {
        Ok(_) if is_known(name) => Ok(()),
        Ok(_) => Err("does not apply to producers".to_owned()),
        Err(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..)) => {
            Err("is not a librdkafka property".to_owned())
        }
        Err(_) if is_secret(name) => Err("has a value that librdkafka rejects".to_owned()),
        Err(KafkaError::ClientConfig(_, reason, ..)) => {
            Err(format!("is rejected by librdkafka: {}", reason.trim_end()))
        }
        Err(_) => Err("has a value that librdkafka rejects".to_owned()),
    }
}

/// The property for the end of the name of an environment variable: `SASL_PASSWORD` is `sasl.password`, and
/// `SASL_PASSWORD_FILE` is its twin `sasl.password_file`.
pub(crate) fn of_variable(variable: &str) -> String {
    let dotted = |name: &str| name.to_lowercase().replace('_', ".");
    match variable.strip_suffix("_FILE").map(dotted) {
        Some(secret) if is_secret(&secret) => format!("{secret}_file"),
        _ => dotted(variable),
    }
}

/// Whether the value of this property may be printed.
pub(crate) fn is_harmless(name: &str) -> bool {
    let names_a_file = name.strip_suffix("_file").is_some_and(is_secret);
    names_a_file || (is_known(name) && !is_secret(name))
}

/// Properties that the guarantees rest on, or that another setting decides, each with the reason.
pub const PROTECTED: &[(&str, &str)] = &[
    ("acks", ACKS),
    ("request.required.acks", ACKS),
    ("enable.idempotence", "without it, the producer's own retries would reorder and repeat events"),
    (
        "enable.gapless.guarantee",
        "a producer that continues after a failed event would publish later events of its key first",
    ),
    ("max.in.flight", IN_FLIGHT),
    ("max.in.flight.requests.per.connection", IN_FLIGHT),
    ("retries", RETRIES),
    ("message.send.max.retries", RETRIES),
    ("message.timeout.ms", DEADLINE),
    ("delivery.timeout.ms", DEADLINE),
    ("queuing.strategy", "a non-FIFO queue reorders events"),
    ("delivery.report.only.error", "an event is marked as sent only after its own delivery report"),
    ("partitioner", "the relay chooses the partition of a key as Java clients do (murmur2)"),
    ("transactional.id", TRANSACTIONS),
    ("transaction.timeout.ms", TRANSACTIONS),
    (
        "allow.auto.create.topics",
        "a mistyped aggregate type must not create a topic; its events are held instead",
    ),
    (
        "topic.metadata.propagation.max.ms",
        "the relay decides when a topic counts as missing and its events are held",
    ),
    ("queue.buffering.max.messages", QUEUE),
    ("queue.buffering.max.kbytes", QUEUE),
    (
        "api.version.request",
        "without it, the client does not know whether the brokers support idempotent producers",
    ),
    ("bootstrap.servers", BROKERS),
    ("metadata.broker.list", BROKERS),
    ("log_level", LOG),
    ("log.queue", LOG),
    ("enabled_events", "the relay reads the producer's events itself"),
    ("plugin.library.paths", "third-party code in the producer could change what is sent"),
    ("interceptors", "third-party code in the producer could change what is sent"),
    (
        "enable.sasl.oauthbearer.unsecure.jwt",
        "an unsigned token provides no security; set [kafka.oauth] instead",
    ),
    ("https.ca.location", TOKEN_AUTHORITIES),
    ("https.ca.pem", TOKEN_AUTHORITIES),
    ("sasl.oauthbearer.method", TOKENS),
    ("sasl.oauthbearer.config", TOKENS),
    ("sasl.oauthbearer.client.id", TOKENS),
    ("sasl.oauthbearer.client.secret", TOKENS),
    ("sasl.oauthbearer.client.credentials.client.id", TOKENS),
    ("sasl.oauthbearer.client.credentials.client.secret", TOKENS),
    ("sasl.oauthbearer.token.endpoint.url", TOKENS),
    ("sasl.oauthbearer.scope", TOKENS),
    (
        "sasl.oauthbearer.extensions",
        "the relay's tokens have no extensions, because the client library does not support them",
    ),
    ("sasl.oauthbearer.grant.type", GRANT),
    ("sasl.oauthbearer.metadata.authentication.type", GRANT),
    ("sasl.oauthbearer.assertion.algorithm", GRANT),
    ("sasl.oauthbearer.assertion.claim.aud", GRANT),
    ("sasl.oauthbearer.assertion.claim.exp.seconds", GRANT),
    ("sasl.oauthbearer.assertion.claim.iss", GRANT),
    ("sasl.oauthbearer.assertion.claim.jti.include", GRANT),
    ("sasl.oauthbearer.assertion.claim.nbf.seconds", GRANT),
    ("sasl.oauthbearer.assertion.claim.sub", GRANT),
    ("sasl.oauthbearer.assertion.file", GRANT),
    ("sasl.oauthbearer.assertion.jwt.template.file", GRANT),
    ("sasl.oauthbearer.assertion.private.key.file", GRANT),
    ("sasl.oauthbearer.assertion.private.key.passphrase", GRANT),
    ("sasl.oauthbearer.assertion.private.key.pem", GRANT),
    ("topic.blacklist", TOPICS),
    ("sasl.kerberos.keytab", KERBEROS),
    ("sasl.kerberos.kinit.cmd", KERBEROS),
    ("sasl.kerberos.min.time.before.relogin", KERBEROS),
    ("sasl.kerberos.principal", KERBEROS),
    ("sasl.kerberos.service.name", KERBEROS),
];

const ACKS: &str = "an event counts as sent only when all in-sync replicas have it (acks=all)";
const IN_FLIGHT: &str =
    "librdkafka limits the requests in flight of an idempotent producer, so that events stay in order";
const RETRIES: &str = "the relay retries until publish_timeout; a lower limit would drop events";
const DEADLINE: &str = "a timeout in the producer can leave gaps; set [relay] publish_timeout instead";
const TRANSACTIONS: &str = "the relay does not use Kafka transactions";
const QUEUE: &str =
    "the queue is sized so that it is never full; set [relay] batch_size and batch_bytes instead";
const TOPICS: &str = "events of these topics would never be sent; use `outbox-relay pause --topic` instead";
const BROKERS: &str = "set [kafka] bootstrap_servers instead";
const TOKENS: &str = "the relay fetches tokens itself; set token_url, client_id, client_secret_file and scope in [kafka.oauth] instead";
const TOKEN_AUTHORITIES: &str = "the relay fetches tokens itself; set [kafka.oauth] ca_location instead";
const GRANT: &str = "the relay supports only the client credentials grant; set [kafka.oauth] instead";
const KERBEROS: &str = "GSSAPI (Kerberos) is not supported; \"sasl.mechanism\" can be PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER";
const LOG: &str = "set [log] level instead";

/// Properties whose values must never be shown; each can be read from a file by its twin, `<name>_file`.
pub const SECRETS: &[&str] = &[
    "sasl.password",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
];

/// Properties that name a file; relative names are looked up as those of secrets are.
pub const FILES: &[&str] = &[
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.crl.location",
];

/// The properties of librdkafka 2.12 that concern a producer and can be written as text.
const PRODUCER: &str = "
    acks allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
    batch.num.messages batch.size bootstrap.servers broker.address.family broker.address.ttl broker.version.fallback
    client.dns.lookup client.id compression.codec compression.level compression.type connections.max.idle.ms debug
    delivery.report.only.error delivery.timeout.ms enable.gapless.guarantee enable.idempotence enable.metrics.push
    enable.random.seed enable.sasl.oauthbearer.unsecure.jwt enable.ssl.certificate.verification enabled_events
    https.ca.location https.ca.pem interceptors internal.termination.signal linger.ms log.connection.close log.queue
    log.thread.name log_level max.in.flight max.in.flight.requests.per.connection message.copy.max.bytes
    message.max.bytes message.send.max.retries message.timeout.ms metadata.broker.list metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy partitioner plugin.library.paths
    queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages
    queue.buffering.max.ms queuing.strategy receive.message.max.bytes reconnect.backoff.max.ms reconnect.backoff.ms
    request.required.acks request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab
    sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal sasl.kerberos.service.name
    sasl.mechanism sasl.mechanisms sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
    sasl.oauthbearer.assertion.jwt.template.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.private.key.pem
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.config sasl.oauthbearer.extensions
    sasl.oauthbearer.grant.type sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method
    sasl.oauthbearer.scope sasl.oauthbearer.token.endpoint.url sasl.password sasl.username security.protocol
    socket.connection.setup.timeout.ms socket.keepalive.enable socket.max.fails socket.nagle.disable
    socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms ssl.ca.certificate.stores ssl.ca.location
    ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location ssl.curves.list
    ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location ssl.key.location ssl.key.password
    ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.providers ssl.sigalgs.list statistics.interval.ms
    sticky.partitioning.linger.ms topic.blacklist topic.metadata.propagation.max.ms
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
    transaction.timeout.ms transactional.id";

/// The names of all properties that a producer has.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRODUCER.split_whitespace()
}

/// Whether this is a property of a producer, protected or not.
pub fn is_known(name: &str) -> bool {
    names().any(|known| known == name)
}

/// Whether the value of this property must never be shown.
pub fn is_secret(name: &str) -> bool {
    SECRETS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_name_is_a_librdkafka_property() {
        let listed = names().chain(PROTECTED.iter().map(|(name, _)| *name)).chain(SECRETS.iter().copied());
        for name in listed.chain(FILES.iter().copied()) {
            let verdict = ClientConfig::new().set(name, "\u{1}").create_native_config();
            let unknown =
                matches!(verdict, Err(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..)));
            assert!(!unknown, "{name}");
            assert!(is_known(name), "{name}");
        }
    }

    #[test]
    fn properties_behind_the_guarantees_cannot_be_set_even_to_the_right_value() {
        for (name, value) in [("acks", "all"), ("enable.idempotence", "true"), ("message.timeout.ms", "0")] {
            assert!(check(name, value).unwrap_err().starts_with("cannot be set: "), "{name}");
        }
    }

    #[test]
    fn tuning_and_security_properties_can_be_set() {
        for (name, value) in [
            ("compression.type", "zstd"),
            ("linger.ms", "5"),
            ("batch.size", "100000"),
            ("message.max.bytes", "5000000"),
            ("client.id", "relay-1"),
            ("security.protocol", "sasl_ssl"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("sasl.password", "x"),
            ("ssl.key.pem", "x"),
        ] {
            assert_eq!(check(name, value), Ok(()), "{name}");
        }
    }

    #[test]
    fn an_error_never_contains_a_secret() {
        for name in SECRETS {
            let Err(reason) = check(name, "hunter2\0") else { panic!("{name}") };
            assert!(!reason.contains("hunter2"), "{reason}");
        }
    }

    #[test]
    fn an_error_about_an_unsupported_property_names_the_alternative() {
        let oauth = names().filter(|name| name.contains("oauthbearer") || name.starts_with("https."));
        for name in oauth {
            let reason = check(name, "oidc").unwrap_err();
            assert!(reason.starts_with("cannot be set: "), "{name}: {reason}");
            assert!(reason.contains("[kafka.oauth]") || name.ends_with(".extensions"), "{name}: {reason}");
        }
        for name in names().filter(|name| name.contains("kerberos")) {
            assert!(check(name, "x").unwrap_err().contains("can be PLAIN, SCRAM-SHA-256"), "{name}");
        }
    }
}
