//! `[kafka]`: the cluster, and librdkafka properties.

use crate::login::{self, TokenSection};
pub use crate::login::{Aws, ClientAuthentication, OAuth, TokenUrl};
use crate::properties;
use settings::file::Entry;
use settings::file::nearest;
use settings::findings::{Place, Problem};
use settings::reader::{Reader, check_key};
use settings::reader::{Value, is_loopback};
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
        /// The properties that the user set, by name. Each passed [`properties::check`].
        pub properties: BTreeMap<String, Property>,
        /// The token endpoint for SASL OAUTHBEARER.
        pub oauth: Option<OAuth>,
        /// How to sign tokens for SASL OAUTHBEARER with AWS credentials.
        pub aws: Option<Aws>,
    }
}

/// `[kafka.properties]`.
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
    key_of_variable: properties::of_variable,
    what: "properties of librdkafka",
    is_known: properties::is_known,
    is_harmless: properties::is_harmless,
};

/// The file of the client's key.
const KEY: &str = "ssl.key.location";

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
    ///
    /// # Errors
    ///
    /// If the file of a secret cannot be read.
    pub fn read_properties(&self) -> io::Result<Vec<(&str, Secret)>> {
        let read = |property: &Property| match property {
            Property::Plain(text) => Ok(Secret::new(text)),
            Property::Secret(source) => source.read(),
        };
        self.properties.iter().map(|(name, property)| Ok((name.as_str(), read(property)?))).collect()
    }

    /// Whether clients log in with tokens.
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
                    match &property {
                        Property::Secret(SecretSource::Inline(_)) => {
                            reader.warn_if_inline(name, &entry.place);
                        }
                        Property::Secret(SecretSource::File(path)) => {
                            reader.warn_if_shared(name, &entry.place, path);
                        }
                        Property::Plain(_) => {}
                    }
                    properties.insert(base, property);
                }
                Err(problem) => reader.findings.error(&entry.place, problem),
            }
        }
        if reader.whole {
            if let Some(kafka) = &kafka {
                warn_if_plaintext(&kafka.bootstrap_servers, properties.get("security.protocol"), reader);
            }
            check_together(&properties, &entries, reader);
        }
        Some(Kafka { properties, oauth, aws, ..kafka? })
    }
}

/// Reports combinations of properties that librdkafka rejects or that are probably mistakes.
fn check_together(
    properties: &BTreeMap<String, Property>,
    entries: &BTreeMap<String, Entry>,
    reader: &mut Reader,
) {
    let default = reader.default_place();
    let place = |name: &str| entries.get(name).map_or(&default, |entry| &entry.place);
    let plain = |name: &str| match properties.get(name) {
        Some(Property::Plain(text)) => Some(text.as_str()),
        _ => None,
    };
    let first = |names: [&'static str; 2]| names.into_iter().find(|name| entries.contains_key(*name));
    let protocol = plain("security.protocol").unwrap_or("plaintext").to_lowercase();
    let uses_sasl = protocol.starts_with("sasl");
    let mechanism = first(["sasl.mechanism", "sasl.mechanisms"]);
    let tokens = TokenSection::used(reader);
    let implied = if tokens.is_some() { OAUTHBEARER } else { "GSSAPI" };
    let chosen = mechanism.and_then(plain).unwrap_or(implied);
    let login = place(mechanism.unwrap_or("security.protocol"));
    match &tokens {
        Some(tokens) => tokens.check(&protocol, chosen, properties, entries, reader),
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

fn warn_if_plaintext(brokers: &str, protocol: Option<&Property>, reader: &mut Reader) {
    let is_plaintext = match protocol {
        None => true,
        Some(Property::Plain(protocol)) => protocol.eq_ignore_ascii_case("plaintext"),
        Some(Property::Secret(_)) => false,
    };
    if is_plaintext && is_remote(brokers) {
        let message = "security.protocol is plaintext, and a broker is remote, so others can read and change the events";
        let help = "set \"security.protocol\" = \"ssl\" or \"sasl_ssl\" in [kafka.properties]";
        reader.warn(&Kafka::bootstrap_servers, Problem::new(message, help));
    }
}

/// Whether a broker is on another host.
fn is_remote(brokers: &str) -> bool {
    let host = |broker: &str| {
        let broker = broker.trim().rsplit_once("://").map_or(broker.trim(), |(_, broker)| broker);
        broker.rsplit_once(':').map_or(broker, |(host, _)| host).to_owned()
    };
    !brokers.split(',').map(host).all(|host| is_loopback(&host))
}

/// Checks a list of brokers.
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
    if let Some(base) = name.strip_suffix("_file").filter(|base| properties::is_secret(base)) {
        let (source, secret) = reader.secret_file(section, name, &value)?;
        if let Some(secret) = secret {
            accept(base, secret.expose())?;
        }
        return Ok((base.to_owned(), Property::Secret(source)));
    }
    accept(name, &value)?;
    if properties::is_secret(name) {
        return Ok((name.to_owned(), Property::Secret(SecretSource::Inline(Secret::new(value)))));
    }
    if properties::FILES.contains(&name) && value != "probe" {
        let path = reader.readable_file(section, name, &value)?;
        if name == KEY {
            check_key(name, &path)?;
        }
        return Ok((name.to_owned(), Property::Plain(path.to_string_lossy().into_owned())));
    }
    Ok((name.to_owned(), Property::Plain(value)))
}

fn accept(name: &str, value: &str) -> Result<(), Problem> {
    properties::check(name, value).map_err(|reason| {
        let help = match nearest(name, properties::names()) {
            Some(near) if !properties::is_known(name) => format!("did you mean `{near}`?"),
            None if !properties::is_known(name) => {
                "for the names, see CONFIGURATION.md of librdkafka".to_owned()
            }
            _ if properties::PROTECTED.iter().any(|(protected, _)| *protected == name) => {
                "remove it".to_owned()
            }
            _ => "for the values, see CONFIGURATION.md of librdkafka".to_owned(),
        };
        Problem::new(format!("Kafka property `{name}` {reason}"), help)
    })
}
