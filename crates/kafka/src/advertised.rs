//! Names the advertised broker addresses that this host cannot use. Bootstrap connections work without them, and librdkafka
//! does not reliably report them.

use crate::publishing::producer::METADATA_TIMEOUT;
use crate::tokens::Tokens;
use futures_util::future::{join_all, select_ok};
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer as _, ProducerContext};
use rdkafka::{ClientConfig, Statistics};
use relay::failure::KafkaFailure;
use relay::reason::ADVERTISED_ADDRESS;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

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
    let list = move || {
        let list = List { tokens, brokers: Mutex::default() };
        let client = BaseProducer::from_config_and_context(&config, list).ok()?;
        let until = Instant::now() + WITHIN;
        let mut brokers = Vec::new();
        if client.client().fetch_cluster_id(WITHIN).is_some() {
            while brokers.is_empty() && Instant::now() < until {
                client.poll(Duration::from_millis(STATISTICS_EVERY_MS));
                brokers = std::mem::take(&mut *client.context().brokers());
            }
        }
        // Waits for threads that may be resolving a name.
        tokio::task::spawn_blocking(move || drop(client));
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

/// The same, but only if this host cannot use any of them.
pub(super) async fn all_unusable(bootstrap: &str, addresses: &[Address]) -> Option<KafkaFailure> {
    if addresses.is_empty()
        || select_ok(addresses.iter().map(|address| Box::pin(connect(address)))).await.is_ok()
    {
        return None;
    }
    unusable(bootstrap, addresses).await
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
    let addresses = match timeout(WITHIN, lookup_host((host.as_str(), *port))).await {
        Ok(Ok(addresses)) => addresses,
        Ok(Err(error)) => return Err(cannot("resolve", error.to_string())),
        Err(_) => return Err(cannot("resolve", late())),
    };
    let mut why = "the name has no address".to_owned();
    for address in addresses {
        match timeout(WITHIN, TcpStream::connect(address)).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => why = error.to_string(),
            Err(_) => why = late(),
        }
    }
    Err(cannot("reach", why))
}

/// Collects the brokers that the client has learned of.
struct List {
    tokens: Option<Arc<Tokens>>,
    brokers: Mutex<Vec<Address>>,
}

impl List {
    fn brokers(&self) -> std::sync::MutexGuard<'_, Vec<Address>> {
        self.brokers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for List {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        Ok(self.tokens.as_ref().ok_or("neither [kafka.oauth] nor [kafka.aws] is set")?.get()?)
    }

    fn stats(&self, statistics: Statistics) {
        // Bootstrap brokers have negative IDs.
        let learned = statistics.brokers.into_values().filter(|broker| broker.nodeid >= 0);
        *self.brokers() = learned.filter_map(|broker| address(&broker.nodename)).collect();
    }

    // The producers report the same.
    fn log(&self, _: RDKafkaLogLevel, _: &str, _: &str) {}

    fn error(&self, _: KafkaError, _: &str) {}
}

impl ProducerContext for List {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

fn address(node: &str) -> Option<Address> {
    let (host, port) = node.rsplit_once(':')?;
    Some((host.trim_matches(['[', ']']).to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

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
