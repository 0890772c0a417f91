//! `[kafka]`: the cluster, and the properties of librdkafka.

use std::collections::BTreeMap;
use std::io;

use super::entries::Entry;
use super::findings::Problem;
use super::nearest::nearest;
use super::oauth::OAuth;
use super::properties;
use super::reader::Reader;
use super::secret::{Secret, SecretSource};
use super::values::Raw;

/// The mechanism that logs in with a token.
pub(crate) const OAUTHBEARER: &str = "OAUTHBEARER";

/// `[kafka]`: the cluster that events go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kafka {
    /// The brokers to begin with, `host:port` separated by commas.
    pub bootstrap_servers: String,
    /// The properties that the user chose, by librdkafka's names; each was accepted by
    /// the [`PropertyCheck`](properties::PropertyCheck).
    pub properties: BTreeMap<String, Property>,
    /// Where tokens to log in with come from, with SASL OAUTHBEARER.
    pub oauth: Option<OAuth>,
}

/// The value of a librdkafka property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Property {
    /// A value that can be shown.
    Plain(String),
    /// A password or a key.
    Secret(SecretSource),
}

impl Kafka {
    /// The user's properties with the secrets as they are now, for a new producer.
    ///
    /// # Errors
    ///
    /// When the file of a secret cannot be read; the error names the file.
    pub fn read_properties(&self) -> io::Result<Vec<(&str, Secret)>> {
        let read = |property: &Property| match property {
            Property::Plain(text) => Ok(Secret::new(text)),
            Property::Secret(source) => source.read(),
        };
        self.properties.iter().map(|(name, property)| Ok((name.as_str(), read(property)?))).collect()
    }
}

impl Kafka {
    pub(super) fn from(reader: &mut Reader) -> Kafka {
        let bootstrap_servers = reader.text("kafka", "bootstrap_servers").unwrap_or_default();
        if let (Err(problem), Some(place)) =
            (check_brokers(&bootstrap_servers), reader.place("kafka", "bootstrap_servers"))
        {
            reader.findings.error(&place, problem);
        }
        let oauth = OAuth::from(reader);
        let mut kafka = Kafka { bootstrap_servers, properties: BTreeMap::new(), oauth };
        let entries = std::mem::take(&mut reader.entries.properties);
        for (name, entry) in &entries {
            match property(name, entry, reader) {
                Ok((base, _)) if kafka.properties.contains_key(&base) => {
                    let message = format!("both `{base}` and `{base}_file` are given");
                    reader.findings.error(&entry.place, Problem::new(message, "keep one of the two"));
                }
                Ok((base, property)) => {
                    kafka.properties.insert(base, property);
                }
                Err(problem) => reader.findings.error(&entry.place, problem),
            }
        }
        if reader.whole {
            kafka.check_together(&entries, reader);
        }
        kafka
    }

    fn plain(&self, name: &str) -> Option<&str> {
        match self.properties.get(name)? {
            Property::Plain(text) => Some(text),
            Property::Secret(_) => None,
        }
    }

    /// What librdkafka would accept one by one, and what is hardly meant.
    fn check_together(&self, entries: &BTreeMap<String, Entry>, reader: &mut Reader) {
        let default = reader.default_place();
        let place = |name: &str| entries.get(name).map_or(&default, |entry| &entry.place);
        let protocol = self.plain("security.protocol").unwrap_or("plaintext").to_lowercase();
        let uses_sasl = protocol.starts_with("sasl");
        let mechanism =
            ["sasl.mechanism", "sasl.mechanisms"].into_iter().find(|name| entries.contains_key(*name));
        let chosen = mechanism.and_then(|name| self.plain(name));
        let tokens = OAuth::place(reader);
        let chosen = chosen.unwrap_or(if tokens.is_some() { OAUTHBEARER } else { "GSSAPI" });
        let by_token = chosen.eq_ignore_ascii_case(OAUTHBEARER);
        if uses_sasl && by_token && tokens.is_none() {
            let message =
                "Kafka property `sasl.mechanism` is OAUTHBEARER, and nothing says where tokens come from";
            let help = "set token_url, client_id and client_secret_file in [kafka.oauth]";
            let place = place(mechanism.unwrap_or("security.protocol"));
            reader.findings.error(place, Problem::new(message, help));
        }
        if let (Some(place), false) = (tokens, uses_sasl && by_token) {
            let (message, help) = if uses_sasl {
                let message = format!("[kafka.oauth] has no effect while `sasl.mechanism` is {chosen}");
                (message, "set \"sasl.mechanism\" = \"OAUTHBEARER\", or remove [kafka.oauth]")
            } else {
                let message = format!("[kafka.oauth] has no effect while security.protocol is {protocol}");
                (message, "set \"security.protocol\" = \"sasl_ssl\" in [kafka.properties]")
            };
            reader.findings.error(&place, Problem::new(message, help));
        }
        if uses_sasl && chosen.eq_ignore_ascii_case("GSSAPI") {
            let message =
                "Kafka property `sasl.mechanism` is GSSAPI, librdkafka's default, which is not built in";
            let help = "set \"sasl.mechanism\" to PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER";
            let place = place(mechanism.unwrap_or("security.protocol"));
            reader.findings.error(place, Problem::new(message, help));
        }
        let unused = mechanism
            .or_else(|| ["sasl.username", "sasl.password"].into_iter().find(|n| entries.contains_key(*n)));
        if let (Some(name), false) = (unused, uses_sasl) {
            let message =
                format!("Kafka property `{name}` has no effect while security.protocol is {protocol}");
            reader
                .findings
                .error(place(name), Problem::new(message, "set \"security.protocol\" = \"sasl_ssl\""));
        }
        if protocol == "sasl_plaintext" {
            let message = "security.protocol sasl_plaintext sends events, and with PLAIN the password or with OAUTHBEARER the token, unencrypted";
            reader.findings.warn(place("security.protocol"), Problem::new(message, "prefer sasl_ssl"));
        }
        for (name, weak) in [
            ("enable.ssl.certificate.verification", "false"),
            ("ssl.endpoint.identification.algorithm", "none"),
        ] {
            if self.plain(name).is_some_and(|value| value.eq_ignore_ascii_case(weak)) {
                let message = format!("with `{name}` = {weak}, anybody can pose as a broker");
                reader.findings.warn(place(name), Problem::new(message, "set \"ssl.ca.location\" instead"));
            }
        }
    }
}

fn check_brokers(list: &str) -> Result<(), Problem> {
    for broker in list.split(',').map(str::trim) {
        let (host, port) = broker.rsplit_once(':').unwrap_or((broker, "9092"));
        let host = host.rsplit_once("://").map_or(host, |(_, host)| host);
        if host.is_empty() || host.contains([' ', '/', '@']) || port.parse::<u16>().is_err() {
            // Not quoted: somebody may have put a URL with a password here.
            let message = "[kafka] bootstrap_servers is not a list of host:port";
            return Err(Problem::new(message, "for instance \"kafka-1:9092,kafka-2:9092\""));
        }
    }
    Ok(())
}

/// One property, by the name without `_file`.
fn property(name: &str, entry: &Entry, reader: &Reader) -> Result<(String, Property), Problem> {
    let value = match &entry.raw {
        Raw::Variable(text) | Raw::String(text) => text.clone(),
        Raw::Integer(number) => number.to_string(),
        Raw::Boolean(flag) => flag.to_string(),
        Raw::List(_) | Raw::Other(_) => {
            let message = format!("Kafka property `{name}` must be a string, an integer or a boolean");
            return Err(Problem::new(message, "write lists as one string, separated by commas"));
        }
    };
    if let Some(base) = name.strip_suffix("_file").filter(|base| properties::is_secret(base)) {
        if !reader.opens_files_of("kafka") {
            let source = SecretSource::File(reader.lookup.resolve(&value));
            return Ok((base.to_owned(), Property::Secret(source)));
        }
        let (source, secret) = reader.secret_file(name, &value)?;
        accept(base, secret.expose(), reader)?;
        return Ok((base.to_owned(), Property::Secret(source)));
    }
    accept(name, &value, reader)?;
    if properties::is_secret(name) {
        return Ok((name.to_owned(), Property::Secret(SecretSource::Inline(Secret::new(value)))));
    }
    if properties::FILES.contains(&name) && value != "probe" && reader.opens_files_of("kafka") {
        let path = reader.readable_file(name, &value)?;
        return Ok((name.to_owned(), Property::Plain(path.to_string_lossy().into_owned())));
    }
    Ok((name.to_owned(), Property::Plain(value)))
}

fn accept(name: &str, value: &str, reader: &Reader) -> Result<(), Problem> {
    (reader.check)(name, value).map_err(|reason| {
        let help = match nearest(name, properties::names()) {
            Some(near) if !properties::is_known(name) => format!("did you mean `{near}`?"),
            None if !properties::is_known(name) => {
                "see librdkafka's CONFIGURATION.md for the names".to_owned()
            }
            _ if properties::PROTECTED.iter().any(|(protected, _)| *protected == name) => {
                "remove the line".to_owned()
            }
            _ => String::new(),
        };
        Problem::new(format!("Kafka property `{name}` {reason}"), help)
    })
}
