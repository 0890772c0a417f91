//! The consumer's settings and callbacks.

use crate::client_config::client_config;
use crate::errors::failure::failure;
use crate::options::Kafka;
use crate::tokens::Tokens;
use rdkafka::ClientConfig;
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::KafkaError;
use relay::failure::KafkaFailure;
use std::sync::Arc;
use std::time::Duration;

/// The largest response to a fetch. Larger records are fetched too.
const FETCH_BYTES: usize = 8 * 1024 * 1024;
/// What a response has in addition to its records.
const RESPONSE_OVERHEAD: usize = 512;
/// How long to wait for the first token. librdkafka requests it as soon as the client exists.
const TOKEN_WAIT: Duration = Duration::from_millis(100);

pub(super) fn consumer(settings: &Kafka) -> Result<BaseConsumer<Client>, KafkaFailure> {
    let mut config = client_config(settings)?;
    let fetch_bytes = fetch_bytes(&config).to_string();
    config
        // librdkafka requires it. No group is joined, because the partitions are assigned.
        .set("group.id", "outbox-relay-verify")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        // Records that were deleted before they were read must not be skipped.
        .set("auto.offset.reset", "error")
        // The relay publishes without transactions, so those of other producers need not be awaited.
        .set("isolation.level", "read_uncommitted")
        .set("enable.partition.eof", "true")
        .set("queued.max.messages.kbytes", "16384")
        .set("fetch.max.bytes", fetch_bytes);
    let context = Client { tokens: Tokens::of(settings)? };
    let consumer = BaseConsumer::from_config_and_context(&config, context)
        .map_err(|error| failure("creating a consumer", &error))?;
    if settings.uses_tokens() {
        // The token is fetched while the consumer is polled.
        let _ = consumer.poll(TOKEN_WAIT);
    }
    Ok(consumer)
}

/// A response must fit into the user's `receive.message.max.bytes`.
fn fetch_bytes(config: &ClientConfig) -> usize {
    let response_max = config.get("receive.message.max.bytes").and_then(|value| value.parse::<usize>().ok());
    response_max.map_or(FETCH_BYTES, |most| FETCH_BYTES.min(most.saturating_sub(RESPONSE_OVERHEAD)))
}

pub(super) struct Client {
    /// For SASL OAUTHBEARER.
    tokens: Option<Arc<Tokens>>,
}

impl ClientContext for Client {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        let tokens = self.tokens.as_ref().ok_or("neither [kafka.oauth] nor [kafka.aws] is set")?;
        Ok(tokens.get()?)
    }

    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(target: "librdkafka", "{facility}: {message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", "{error}: {reason}");
    }
}

impl ConsumerContext for Client {}
