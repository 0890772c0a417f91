//! `[kafka]`: the cluster, and librdkafka properties: which exist, which are secret, which cannot be set, and whether a value is
//! valid.

use crate::login;
pub use crate::login::{Aws, ClientAuthentication, OAuth};
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;
use settings::file::{Entries, Entry, nearest};
use settings::findings::{Place, Problem};
use settings::reader::{Reader, Value, check_key, is_loopback};
use settings::secret::{Secret, SecretSource};
use settings::section;
use settings::setting::Fallback::Required;
use settings::setting::Kind::Text;
use settings::setting::{Section, Setting, Table};
use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU16;

section! {
    "kafka" Kafka,
        "The cluster to publish to." {
        bootstrap_servers: String => brokers, Text, Required("localhost:9092"), Restart,
            "Bootstrap brokers as host:port, separated by commas.";
        [properties] PROPERTIES,
            "Any librdkafka property, by its own name, except those that the guarantees depend on. Secrets \
             can be read from\nfiles: \"sasl.password_file\". In the environment, sasl.password is \
             OUTBOX_RELAY__KAFKA__PROPERTIES__SASL_PASSWORD.";
    } and {
        /// The properties that the user set, by name. Each passed [`check_property`].
        pub properties: BTreeMap<String, Property>,
        /// The token endpoint for SASL OAUTHBEARER.
        pub oauth: Option<OAuth>,
        /// How to sign tokens for SASL OAUTHBEARER with AWS credentials.
        pub aws: Option<Aws>,
    }
}

static PROPERTIES: Table = Table {
    section: "kafka.properties",
    example: "{ \"client.id\" = \"relay\" }",
    lines: "\
#\"compression.type\" = \"lz4\"
#\"security.protocol\" = \"sasl_ssl\"
#\"ssl.ca.location\" = \"kafka-ca.pem\"
#\"sasl.mechanism\" = \"SCRAM-SHA-512\"
#\"sasl.username\" = \"outbox-relay\"
#\"sasl.password_file\" = \"kafka-password\"
",
    key_of_variable: of_variable,
    what: "properties of librdkafka",
    is_known,
    is_harmless,
};

/// The SASL mechanism that uses tokens.
pub(crate) const OAUTHBEARER: &str = "OAUTHBEARER";

/// The value of a librdkafka property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Property {
    /// A value that may be printed.
    Plain(String),
    /// A password or a key.
    Secret(SecretSource),
}

impl Property {
    /// The value, unless it is a secret.
    pub(crate) fn plain(&self) -> Option<&str> {
        if let Property::Plain(text) = self { Some(text) } else { None }
    }

    /// The value as text, without secrets.
    pub fn shown(&self) -> Option<String> {
        match self {
            Property::Plain(text) => Some(text.clone()),
            Property::Secret(source) => source.shown(),
        }
    }
}

impl Kafka {
    /// The user's properties for a new producer, with the current values of secrets.
    pub fn read_properties(&self) -> io::Result<Vec<(&str, Secret)>> {
        let read = |name: &str, property: &Property| match property {
            Property::Plain(text) => Ok(Secret::new(text)),
            Property::Secret(source) => source.read().map_err(|error| {
                let file = if let SecretSource::File(path) = source {
                    path.display().to_string()
                } else {
                    "it".to_owned()
                };
                io::Error::new(error.kind(), format!("{name}: cannot read {file}: {error}"))
            }),
        };
        self.properties.iter().map(|(name, property)| Ok((name.as_str(), read(name, property)?))).collect()
    }

    pub fn uses_tokens(&self) -> bool {
        self.oauth.is_some() || self.aws.is_some()
    }

    /// Reads the sections of Kafka. `None` if a setting has no value. `has_aws` is whether this program can create tokens with
    /// AWS credentials.
    pub fn from(reader: &mut Reader, has_aws: bool) -> Option<Kafka> {
        let kafka = Kafka::read(reader);
        let oauth = OAuth::from(reader);
        let aws = Aws::from(reader, has_aws);
        if let (Some(aws), Some(kafka)) = (&aws, &kafka) {
            aws.compare_with_brokers(&kafka.bootstrap_servers, reader);
        }
        let entries = reader.entries.table(PROPERTIES.section);
        let mut properties = BTreeMap::new();
        for (name, entry) in &entries {
            match property(name, entry, reader) {
                Ok((base, _)) if properties.contains_key(&base) => {
                    let message = format!("both `{base}` and `{base}_file` are set");
                    reader.findings.error(&entry.place, Problem::new(message, "remove one of them"));
                }
                Ok((base, property)) => {
                    if let Property::Secret(source) = &property {
                        reader.warn_if_exposed(name, &entry.place, source);
                    }
                    properties.insert(base, property);
                }
                Err(problem) => reader.findings.error(&entry.place, problem),
            }
        }
        if reader.whole {
            let brokers = kafka.as_ref().map(|kafka| kafka.bootstrap_servers.as_str());
            check_together(brokers, &properties, &entries, reader);
        }
        Some(Kafka { properties, oauth, aws, ..kafka? })
    }
}

/// Other names of properties that the relay sets itself. The properties of a client have no order, so if two names of one were
/// set, either value could apply.
pub(crate) const ALIASES: [(&str, &str); 3] = [
    ("compression.codec", "compression.type"),
    ("queue.buffering.max.ms", "linger.ms"),
    ("sasl.mechanisms", "sasl.mechanism"),
];

/// Whether the setting is replaced by those that are given, because one is another name of the same property.
pub fn is_replaced(given: &Entries, section: &'static str, key: &str) -> bool {
    let given = |name: &str| given.contains(section, name);
    section == PROPERTIES.section
        && ALIASES.iter().any(|(alias, name)| key == *alias && given(name) || key == *name && given(alias))
}

/// Reports combinations of properties that librdkafka rejects or that are probably mistakes.
fn check_together(
    brokers: Option<&str>,
    properties: &BTreeMap<String, Property>,
    entries: &BTreeMap<String, Entry>,
    reader: &mut Reader,
) {
    let default = reader.default_place();
    let place = |name: &str| entries.get(name).map_or(&default, |entry| &entry.place);
    let plain = |name: &str| properties.get(name).and_then(Property::plain);
    for (alias, name) in ALIASES {
        if !entries.contains_key(alias) || !entries.contains_key(name) {
            continue;
        }
        let message = format!("`{alias}` and `{name}` are the same Kafka property");
        reader.findings.error(place(alias), Problem::new(message, "remove one of them"));
    }
    let first = |names: [&'static str; 2]| names.into_iter().find(|name| entries.contains_key(*name));
    let protocol = plain("security.protocol").unwrap_or("plaintext").to_lowercase();
    if protocol == "plaintext" && brokers.is_some_and(is_remote) {
        let message = "security.protocol is plaintext, and a broker is remote, so others can read and change the events";
        let help = "set \"security.protocol\" = \"ssl\" or \"sasl_ssl\" in [kafka.properties]";
        reader.warn(&Kafka::bootstrap_servers, Problem::new(message, help));
    }
    let uses_sasl = protocol.starts_with("sasl");
    let mechanism = first(["sasl.mechanism", "sasl.mechanisms"]);
    let tokens = login::token_section(reader);
    let implied = if tokens.is_some() { OAUTHBEARER } else { "GSSAPI" };
    let chosen = mechanism.and_then(plain).unwrap_or(implied);
    let login = place(mechanism.unwrap_or("security.protocol"));
    match &tokens {
        Some((section, place)) => match login::contradiction(section, &protocol, chosen) {
            Some(problem) => reader.findings.error(place, problem),
            None if *section == Aws::NAME => login::check_passwords(properties, entries, reader),
            None => {}
        },
        None if uses_sasl && chosen.eq_ignore_ascii_case(OAUTHBEARER) => {
            reader.findings.error(login, login::missing());
        }
        None => {}
    }
    let mut error = |place: &Place, message: String, help: &str| {
        reader.findings.error(place, Problem::new(message, help));
    };
    if uses_sasl && chosen.eq_ignore_ascii_case("GSSAPI") {
        let message =
            "Kafka property `sasl.mechanism` is GSSAPI (the default of librdkafka), which is not supported";
        let help = "set \"sasl.mechanism\" to PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER";
        error(login, message.to_owned(), help);
    }
    let unused = mechanism.or_else(|| first(["sasl.username", "sasl.password"]));
    if let (Some(name), false) = (unused, uses_sasl) {
        let message = format!("Kafka property `{name}` has no effect while security.protocol is {protocol}");
        error(place(name), message, "set \"security.protocol\" = \"sasl_ssl\"");
    }
    if protocol == "sasl_plaintext" {
        let message = "security.protocol is sasl_plaintext, so events are sent unencrypted, as are passwords (PLAIN) and tokens \
             (OAUTHBEARER)";
        reader.findings.warn(place("security.protocol"), Problem::new(message, "set it to \"sasl_ssl\""));
    }
    let verification = ("enable.ssl.certificate.verification", "false");
    for (name, weak) in [verification, ("ssl.endpoint.identification.algorithm", "none")] {
        if plain(name).is_some_and(|value| value.eq_ignore_ascii_case(weak)) {
            let message = format!("Kafka property `{name}` is {weak}, so any host can impersonate a broker");
            reader.findings.warn(place(name), Problem::new(message, "set \"ssl.ca.location\" instead"));
        }
    }
}

/// Whether one of these brokers is on another host.
pub(crate) fn is_remote(brokers: &str) -> bool {
    let host = |broker: &str| {
        let broker = broker.trim().rsplit_once("://").map_or(broker.trim(), |(_, broker)| broker);
        broker.rsplit_once(':').map_or(broker, |(host, _)| host).to_owned()
    };
    !brokers.split(',').map(host).all(|host| is_loopback(&host))
}

fn brokers(list: &str, setting: &Setting, _: &Reader) -> Result<String, Problem> {
    for broker in list.split(',').map(str::trim) {
        let (host, port) = broker.rsplit_once(':').unwrap_or((broker, "9092"));
        let host = host.rsplit_once("://").map_or(host, |(_, host)| host);
        if host.is_empty()
            || host.contains([' ', '/', '@', ';'])
            || host.contains(char::is_control)
            || port.parse::<NonZeroU16>().is_err()
        {
            // The message does not quote it, because it could be a URL with a password.
            let message = format!("{setting} is not a list of host:port");
            return Err(Problem::new(message, "for example \"kafka-1:9092,kafka-2:9092\""));
        }
    }
    Ok(list.to_owned())
}

/// Reads a property. Returns its name without `_file`.
fn property(name: &str, entry: &Entry, reader: &Reader) -> Result<(String, Property), Problem> {
    let Some(value) = entry.raw.text() else {
        let message = format!("Kafka property `{name}` must be a string, an integer or a boolean");
        return Err(Problem::new(message, "write lists as one string, separated by commas"));
    };
    let section = Kafka::bootstrap_servers.section;
    if let Some(base) = name.strip_suffix("_file").filter(|base| is_secret(base)) {
        let (source, secret) = reader.secret_file(section, name, &value)?;
        if let Some(secret) = secret {
            check_property(base, secret.expose())?;
        }
        return Ok((base.to_owned(), Property::Secret(source)));
    }
    check_property(name, &value)?;
    if is_secret(name) && value.is_empty() && (reader.opens_files_of)(section) {
        return Err(Problem::new(
            format!("Kafka property `{name}` is empty"),
            "remove it, or set the secret",
        ));
    }
    if is_secret(name) {
        return Ok((name.to_owned(), Property::Secret(SecretSource::Inline(Secret::new(value)))));
    }
    let value = as_read(name, value);
    if FILES.contains(&name) && value != "probe" {
        let path = reader.readable_file(section, name, &value)?;
        if name == "ssl.key.location" {
            check_key(name, &path)?;
        }
        return Ok((name.to_owned(), Property::Plain(path.to_string_lossy().into_owned())));
    }
    Ok((name.to_owned(), Property::Plain(value)))
}

/// The value in the form in which librdkafka reports it. It also reads other forms, such as "f" for "false", and ignores leading
/// spaces. A number remains as the user wrote it, because librdkafka reports at most six digits of a fraction.
fn as_read(name: &str, value: String) -> String {
    let native = ClientConfig::new().set(name, value.as_str()).create_native_config();
    let is_number = |text: &str| text.parse::<f64>().is_ok();
    match native.and_then(|config| config.get(name)) {
        Ok(read) if !is_number(&read) || !is_number(&value) => read,
        _ => value,
    }
}

/// Checks whether this property may be set to this value. The problem never contains the value of a secret.
pub fn check_property(name: &str, value: &str) -> Result<(), Problem> {
    // librdkafka does not see a protected property: setting `plugin.library.paths` loads the libraries at once.
    if let Some((_, reason)) = protected().find(|(names, _)| names.contains(&name)) {
        return Err(Problem::new(format!("Kafka property `{name}` cannot be set: {reason}"), "remove it"));
    }
    let mut is_explained = is_known(name);
    let reason = match ClientConfig::new().set(name, value).create_native_config() {
        Ok(_) if is_known(name) => return Ok(()),
        Ok(_) => "does not apply to producers".to_owned(),
        Err(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..)) => {
            "is not a librdkafka property".to_owned()
        }
        // For a property of the Java client, the reason names the one of librdkafka.
        Err(KafkaError::ClientConfig(_, reason, ..)) if !is_secret(name) => {
            is_explained = true;
            format!("is rejected by librdkafka: {}", reason.trim_end())
        }
        Err(_) => "has a value that librdkafka rejects".to_owned(),
    };
    let help = match nearest(name, names()) {
        _ if is_explained => "for the values, see CONFIGURATION.md of librdkafka".to_owned(),
        Some(near) => format!("did you mean `{near}`?"),
        None => "for the names, see CONFIGURATION.md of librdkafka".to_owned(),
    };
    Err(Problem::new(format!("Kafka property `{name}` {reason}"), help))
}

/// The property for the end of the name of an environment variable: `SASL_PASSWORD` is `sasl.password`, and
/// `SASL_PASSWORD_FILE` is its twin `sasl.password_file`.
fn of_variable(variable: &str) -> String {
    let dotted = |name: &str| name.to_lowercase().replace('_', ".");
    match variable.strip_suffix("_FILE").map(dotted) {
        Some(secret) if is_secret(&secret) => format!("{secret}_file"),
        _ => dotted(variable),
    }
}

/// Whether the value of this property may be printed.
fn is_harmless(name: &str) -> bool {
    let names_a_file = name.strip_suffix("_file").is_some_and(is_secret);
    names_a_file || (is_known(name) && !is_secret(name))
}

/// Properties that the guarantees rest on, or that another setting decides. Each line has their names and the reason.
const PROTECTED: &str = "\
acks request.required.acks: an event counts as sent only when all in-sync replicas have it (acks=all)
enable.idempotence: without it, the producer's own retries would reorder and repeat events
enable.gapless.guarantee: a producer that continues after a failed event would publish later events of its key first
max.in.flight max.in.flight.requests.per.connection: librdkafka limits the requests in flight of an idempotent producer, so \
    that events stay in order
retries message.send.max.retries: the relay retries until publish_timeout; a lower limit would drop events
message.timeout.ms delivery.timeout.ms: a timeout in the producer can leave gaps; set [relay] publish_timeout instead
queuing.strategy: a non-FIFO queue reorders events
delivery.report.only.error: an event is marked as sent only after its own delivery report
partitioner: the relay chooses the partition of a key as Java clients do (murmur2)
transactional.id transaction.timeout.ms: the relay does not use Kafka transactions
allow.auto.create.topics: a mistyped aggregate type must not create a topic; its events are held instead
topic.metadata.propagation.max.ms: the relay decides when a topic counts as missing and its events are held
queue.buffering.max.messages queue.buffering.max.kbytes: the queue is sized so that it is never full; set [relay] batch_size \
    and batch_bytes instead
api.version.request: without it, the client does not know whether the brokers support idempotent producers
bootstrap.servers metadata.broker.list: set [kafka] bootstrap_servers instead
log_level log.queue: set [log] level instead
internal.termination.signal: the relay handles signals itself
enabled_events: the relay reads the producer's events itself
plugin.library.paths interceptors: third-party code in the producer could change what is sent
enable.sasl.oauthbearer.unsecure.jwt: an unsigned token provides no security; set [kafka.oauth] instead
https.ca.location https.ca.pem: the relay fetches tokens itself; set [kafka.oauth] ca_location instead
sasl.oauthbearer.method sasl.oauthbearer.config sasl.oauthbearer.client.id sasl.oauthbearer.client.secret \
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret \
    sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.scope: the relay fetches tokens itself; set token_url, client_id, \
    client_secret_file and scope in [kafka.oauth] instead
sasl.oauthbearer.extensions: the relay's tokens have no extensions, because the client library does not support them
sasl.oauthbearer.grant.type sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.assertion.algorithm \
    sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss \
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds \
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.jwt.template.file \
    sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase \
    sasl.oauthbearer.assertion.private.key.pem: the relay supports only the client credentials grant; set [kafka.oauth] instead
topic.blacklist: events of these topics would never be sent; use `outbox-relay pause --topic` instead
sasl.kerberos.keytab sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal \
    sasl.kerberos.service.name: GSSAPI (Kerberos) is not supported; \"sasl.mechanism\" can be PLAIN, SCRAM-SHA-256, \
    SCRAM-SHA-512 or OAUTHBEARER";

/// The protected properties: groups of names, each with the reason.
pub fn protected() -> impl Iterator<Item = (Vec<&'static str>, &'static str)> {
    let lines = PROTECTED.lines().filter_map(|line| line.split_once(": "));
    lines.map(|(names, reason)| (names.split(' ').collect(), reason))
}

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

/// The other properties of librdkafka 2.12 that concern a producer and can be written as text.
const OTHERS: &str = "
    api.version.fallback.ms api.version.request.timeout.ms batch.num.messages batch.size broker.address.family
    broker.address.ttl broker.version.fallback client.dns.lookup client.id compression.codec compression.level
    compression.type connections.max.idle.ms debug enable.metrics.push enable.random.seed
    enable.ssl.certificate.verification linger.ms log.connection.close
    log.thread.name message.copy.max.bytes message.max.bytes metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy queue.buffering.backpressure.threshold
    queue.buffering.max.ms receive.message.max.bytes reconnect.backoff.max.ms reconnect.backoff.ms
    request.timeout.ms retry.backoff.max.ms retry.backoff.ms sasl.mechanism sasl.mechanisms sasl.password
    sasl.username security.protocol socket.connection.setup.timeout.ms socket.keepalive.enable
    socket.max.fails socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes
    socket.timeout.ms ssl.ca.certificate.stores ssl.ca.location ssl.ca.pem ssl.certificate.location
    ssl.certificate.pem ssl.cipher.suites ssl.crl.location ssl.curves.list
    ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location ssl.key.location ssl.key.password
    ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.providers ssl.sigalgs.list
    statistics.interval.ms sticky.partitioning.linger.ms topic.metadata.refresh.fast.interval.ms
    topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse";

/// All properties that a producer has, in alphabetical order.
fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = protected().flat_map(|(names, _)| names).collect();
    names.extend(OTHERS.split_whitespace());
    names.sort_unstable();
    names
}

fn is_known(name: &str) -> bool {
    names().contains(&name)
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
        for name in names().into_iter().chain(SECRETS.iter().chain(FILES).copied()) {
            let verdict = ClientConfig::new().set(name, "\u{1}").create_native_config();
            let unknown =
                matches!(verdict, Err(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..)));
            assert!(!unknown, "{name}");
            assert!(is_known(name), "{name}");
        }
    }

    fn refused(name: &str, value: &str) -> String {
        check_property(name, value).unwrap_err().message
    }

    #[test]
    fn properties_behind_the_guarantees_cannot_be_set_even_to_the_right_value() {
        for (name, value) in [("acks", "all"), ("enable.idempotence", "true"), ("message.timeout.ms", "0")] {
            let refused = refused(name, value);
            assert!(refused.starts_with(&format!("Kafka property `{name}` cannot be set: ")), "{refused}");
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
            assert_eq!(check_property(name, value), Ok(()), "{name}");
        }
    }

    #[test]
    fn a_value_has_the_form_in_which_librdkafka_reports_it() {
        for (name, written, read) in [
            ("enable.ssl.certificate.verification", "0", "false"),
            ("enable.ssl.certificate.verification", "F", "false"),
            ("socket.keepalive.enable", "T", "true"),
            ("ssl.endpoint.identification.algorithm", " NONE", "none"),
            ("security.protocol", " PLAINTEXT", "plaintext"),
            ("sasl.mechanism", " PLAIN", "PLAIN"),
            ("message.max.bytes", " 5000000 ", "5000000"),
            ("message.max.bytes", "0x4c4b40", "5000000"),
            ("linger.ms", "12345.678", "12345.678"),
            ("ssl.ca.location", " ca.pem", "ca.pem"),
            ("compression.type", "Zstd", "zstd"),
            ("client.id", "relay-1", "relay-1"),
        ] {
            assert_eq!(as_read(name, written.to_owned()), read, "{name}");
        }
    }

    #[test]
    fn an_error_never_contains_a_secret() {
        for name in SECRETS {
            let refused = refused(name, "hunter2\0");
            assert!(!refused.contains("hunter2"), "{refused}");
        }
    }

    #[test]
    fn an_error_about_an_unsupported_property_names_the_alternative() {
        let names = names();
        let oauth = names.iter().filter(|name| name.contains("oauthbearer") || name.starts_with("https."));
        for name in oauth {
            let refused = refused(name, "oidc");
            assert!(refused.contains("` cannot be set: "), "{refused}");
            assert!(refused.contains("[kafka.oauth]") || name.ends_with(".extensions"), "{refused}");
        }
        for name in names.iter().filter(|name| name.contains("kerberos")) {
            assert!(refused(name, "x").contains("can be PLAIN, SCRAM-SHA-256"), "{name}");
        }
    }
}
