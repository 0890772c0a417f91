//! What all clients of a cluster share: their settings, the library in this binary, the comparison of the cluster that a
//! producer has reached, and the advertised addresses that this host cannot use.

use crate::elsewhere;
use crate::options::{ALIASES, Kafka, OAUTHBEARER};
use crate::tokens::{Tokens, issued};
use futures_util::future::{LocalBoxFuture, join_all, select_ok, try_join_all};
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer as _, ProducerContext};
use rdkafka::util::get_rdkafka_version;
use rdkafka::{ClientConfig, Statistics};
use relay::failure::KafkaFailure;
use relay::health::stats::lock;
use relay::reason::{ADVERTISED_ADDRESS, CONFIGURATION};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

pub(crate) const METADATA_TIMEOUT: Duration = Duration::from_secs(5);

/// What every client of the cluster shares: the user's properties, with secrets read again.
pub fn client_config(settings: &Kafka) -> Result<ClientConfig, KafkaFailure> {
    let unreadable = |error: std::io::Error| CONFIGURATION.failure(format!("[kafka.properties]: {error}"));
    let mut config = ClientConfig::new();
    // Our defaults, which the user may override.
    config.set("client.id", "outbox-relay");
    config.set("reconnect.backoff.max.ms", "1000");
    config.set("socket.keepalive.enable", "true");
    // Load balancers and NAT forget an idle connection after four minutes or more, often without closing it.
    config.set("connections.max.idle.ms", "180000");
    for (name, value) in settings.read_properties().map_err(unreadable)? {
        let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name);
        config.set(name, value.expose());
    }
    if settings.uses_tokens() {
        config.set("sasl.mechanism", OAUTHBEARER);
    }
    config.set("bootstrap.servers", &settings.bootstrap_servers);
    config.set("allow.auto.create.topics", "false");
    // The configured log level decides which lines are logged, not librdkafka.
    config.set_log_level(if tracing::enabled!(target: "librdkafka", tracing::Level::DEBUG) {
        RDKafkaLogLevel::Info
    } else {
        RDKafkaLogLevel::Critical
    });
    Ok(config)
}

pub(crate) fn number(config: &ClientConfig, name: &str) -> Option<usize> {
    config.get(name).and_then(|value| value.parse().ok())
}

/// Keeps OpenSSL usable until the process has ended. Otherwise an exit handler frees its state while threads of a client that
/// is being destroyed may still use it, and the process can crash instead of returning its exit code. Call it before anything
/// uses OpenSSL: only the first initialization can leave out the handler (`OPENSSL_INIT_NO_ATEXIT` in OPENSSL_init_crypto(3)),
/// and librdkafka leaves the initialization to OpenSSL.
pub fn keep_openssl() {
    openssl::init();
}

/// librdkafka's version, such as `2.12.1`.
pub fn version() -> String {
    get_rdkafka_version().1
}

/// librdkafka's built-in features, such as `ssl`, `sasl_scram` or `zstd`.
pub fn features() -> Vec<String> {
    let names = ClientConfig::new().create_native_config().and_then(|config| config.get("builtin.features"));
    names.unwrap_or_default().split(',').map(str::to_owned).collect()
}

/// Decides whether the relay may publish to the cluster with this ID.
pub(crate) type Compare = Rc<dyn Fn(String) -> LocalBoxFuture<'static, Result<(), KafkaFailure>>>;

/// Without [`Comparison::set`], every cluster is accepted.
#[derive(Default)]
pub struct Comparison {
    compare: RefCell<Option<Compare>>,
    /// The ID of the cluster that was compared last.
    accepted: RefCell<Option<String>>,
    /// The ID of the cluster that answered last.
    answered: RefCell<Option<String>>,
}

impl Comparison {
    /// From now on, compares each cluster that answers.
    pub fn set(&self, compare: Compare) {
        self.compare.replace(Some(compare));
    }

    pub fn answered(&self) -> Option<String> {
        self.answered.borrow().clone()
    }

    /// Fails if the cluster with this ID is not the one of the outbox, or if they could not be compared.
    pub async fn check(&self, id: String) -> Result<(), KafkaFailure> {
        self.answered.replace(Some(id.clone()));
        let compare = self.compare.borrow().clone();
        let Some(compare) = compare.filter(|_| self.accepted.borrow().as_ref() != Some(&id)) else {
            return Ok(());
        };
        compare(id.clone()).await?;
        self.accepted.replace(Some(id));
        Ok(())
    }
}

/// How long the brokers may take to list their addresses, DNS to resolve one, and a broker to accept a connection. As long as
/// a producer waits for metadata, so an address that is slower is of no use.
const WITHIN: Duration = METADATA_TIMEOUT;
const STATISTICS_EVERY_MS: u64 = 50;
/// A message names at most this many addresses.
const NAMED_MOST: usize = 3;

/// The host and the port of a broker.
pub(super) type Address = (String, u16);

/// The addresses that the brokers advertise. Empty if no broker answers.
///
/// The statistics list every broker that the client knows. A metadata request would fail if the client has already closed
/// the bootstrap connection.
pub(super) async fn listed(mut config: ClientConfig, tokens: Option<Arc<Tokens>>) -> Vec<Address> {
    config.set("statistics.interval.ms", STATISTICS_EVERY_MS.to_string());
    // The producers log the same lines.
    config.set_log_level(RDKafkaLogLevel::Emerg);
    let list = move || {
        let callbacks = Callbacks { tokens, ..Callbacks::default() };
        let client = BaseProducer::from_config_and_context(&config, callbacks).ok()?;
        if client.context().tokens.is_some() {
            // Without a token, no broker answers, and only a poll fetches one.
            client.poll(Duration::from_millis(STATISTICS_EVERY_MS));
        }
        let until = Instant::now() + WITHIN;
        let mut brokers = Vec::new();
        if client.client().fetch_cluster_id(WITHIN).is_some() {
            while brokers.is_empty() && Instant::now() < until {
                client.poll(Duration::from_millis(STATISTICS_EVERY_MS));
                brokers = std::mem::take(&mut *lock(&client.context().brokers));
            }
        }
        // Waits for threads that may be resolving a name.
        elsewhere(move || drop(client));
        brokers.sort();
        Some(brokers)
    };
    tokio::task::spawn_blocking(list).await.ok().flatten().unwrap_or_default()
}

/// What this host cannot use of these addresses, which the brokers at `bootstrap` advertise.
pub(super) async fn unusable(bootstrap: &str, addresses: &[Address]) -> Option<KafkaFailure> {
    let problems = join_all(addresses.iter().map(connect)).await.into_iter().filter_map(Result::err);
    failure(bootstrap, &problems.collect::<Vec<_>>())
}

/// The same, but only if this host cannot use any of them. Ends as soon as one can be used.
pub(super) async fn all_unusable(bootstrap: &str, addresses: &[Address]) -> Option<KafkaFailure> {
    let problems = addresses.iter().map(|address| async move { connect(address).await.err().ok_or(()) });
    failure(bootstrap, &try_join_all(problems).await.ok()?)
}

fn failure(bootstrap: &str, problems: &[String]) -> Option<KafkaFailure> {
    let named = problems.iter().take(NAMED_MOST).cloned().collect::<Vec<_>>().join("; and ");
    let more = match problems.len().saturating_sub(NAMED_MOST) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    let error = format!("the broker at {bootstrap} advertises {named}{more}");
    (!problems.is_empty()).then(|| ADVERTISED_ADDRESS.failure(error))
}

/// Connects and disconnects. The error names the address.
async fn connect((host, port): &Address) -> Result<(), String> {
    let cannot = |act: &str, why: String| format!("{host}:{port}, which this host cannot {act} ({why})");
    let late = || format!("no answer within {WITHIN:?}");
    let addresses: Vec<_> = match timeout(WITHIN, lookup_host((host.as_str(), *port))).await {
        Ok(Ok(addresses)) => addresses.collect(),
        Ok(Err(error)) => return Err(cannot("resolve", error.to_string())),
        Err(_) => return Err(cannot("resolve", late())),
    };
    if addresses.is_empty() {
        return Err(cannot("reach", "the name has no address".to_owned()));
    }
    // All at once, because one of them may never answer, such as that of a network that drops IPv6.
    let attempts = addresses.into_iter().map(|address| {
        Box::pin(async move {
            match timeout(WITHIN, TcpStream::connect(address)).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err(late()),
            }
        })
    });
    select_ok(attempts).await.map(drop).map_err(|why| cannot("reach", why))
}

/// The callbacks of clients that publish nothing.
#[derive(Default)]
pub(crate) struct Callbacks {
    /// For SASL OAUTHBEARER.
    pub tokens: Option<Arc<Tokens>>,
    /// The brokers that the client has learned of, if it reports statistics.
    pub brokers: Mutex<Vec<Address>>,
}

impl ClientContext for Callbacks {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        issued(self.tokens.as_ref())
    }

    fn stats(&self, statistics: Statistics) {
        // Bootstrap brokers have negative IDs.
        let learned = statistics.brokers.into_values().filter(|broker| broker.nodeid >= 0);
        *lock(&self.brokers) = learned.filter_map(|broker| address(&broker.nodename)).collect();
    }

    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(target: "librdkafka", "{facility}: {message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", "{error}: {reason}");
    }
}

impl ConsumerContext for Callbacks {}

impl ProducerContext for Callbacks {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

fn address(node: &str) -> Option<Address> {
    let (host, port) = node.rsplit_once(':')?;
    Some((host.trim_matches(['[', ']']).to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{features, *};

    #[test]
    fn the_features_that_the_configuration_offers_are_built_in() {
        let features = features();
        for needed in ["ssl", "sasl_plain", "sasl_scram", "sasl_oauthbearer", "gzip", "snappy", "lz4", "zstd"]
        {
            assert!(features.iter().any(|feature| feature == needed), "{needed}: {features:?}");
        }
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for (node, host) in [("kafka-1:9092", "kafka-1"), ("::1:9092", "::1"), ("[::1]:9092", "::1")] {
            assert_eq!(address(node), Some((host.to_owned(), 9092)));
        }
        assert_eq!(address("kafka-1"), None);
    }

    #[test]
    fn a_message_names_a_few_addresses() {
        let problems: Vec<_> = (1..=5).map(|number| format!("k{number}:9092, which is down")).collect();
        let failure = |problems: &[String]| failure("b:9092", problems).map(|failure| failure.error);
        assert_eq!(failure(&[]), None);
        assert_eq!(
            failure(&problems[..1]).unwrap(),
            "the broker at b:9092 advertises k1:9092, which is down"
        );
        assert!(failure(&problems).unwrap().ends_with("; and k3:9092, which is down; and 2 more"));
    }

    #[tokio::test]
    async fn one_address_that_works_is_enough() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let works = ("127.0.0.1".to_owned(), listener.local_addr().unwrap().port());
        let refuses = ("127.0.0.1".to_owned(), 1);
        let both = [refuses.clone(), works];
        assert!(all_unusable("b", &both).await.is_none());
        let named = unusable("b", &both).await.unwrap().error;
        assert_eq!(
            named,
            "the broker at b advertises 127.0.0.1:1, which this host cannot reach (Connection refused (os error 111))"
        );
        assert_eq!(all_unusable("b", &both[..1]).await.unwrap().error, named);
        assert!(all_unusable("b", &[]).await.is_none());
    }
}
