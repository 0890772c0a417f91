//! The settings that the clients of a cluster share.

use crate::options::{Kafka, OAUTHBEARER};
use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use relay::failure::KafkaFailure;
use relay::reason::CONFIGURATION;
use std::time::Duration;

/// After this time without a response, the client replaces a connection and sends its requests again, with the same
/// sequence numbers, so the brokers store nothing twice. A share of `publish_timeout`, so that this happens before the relay
/// concludes from the silence that a partition is stuck.
const SILENT_MOST: Duration = Duration::from_secs(6);
const SILENT_LEAST: Duration = Duration::from_secs(1);
const SILENT_SHARE: u32 = 6;

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

/// Limits how long a producer waits for a response before it replaces the connection, unless the user has set a limit.
pub(super) fn limit_silence(config: &mut ClientConfig, publish_timeout: Duration) {
    if config.get("socket.timeout.ms").is_none() {
        let silent_for = (publish_timeout / SILENT_SHARE).clamp(SILENT_LEAST, SILENT_MOST);
        config.set("socket.timeout.ms", silent_for.as_millis().to_string());
    }
}

pub(super) fn number(config: &ClientConfig, name: &str) -> Option<usize> {
    config.get(name).and_then(|value| value.parse().ok())
}
