//! The Kafka client's own metrics, summed over all producers.

use super::labels::{Named, PerLabel};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use std::sync::atomic::AtomicU64;

const BROKERS_NAMED_MAX: usize = 50;

/// The counters continue when a producer is replaced. The gauges are about the current producers.
pub struct ClientStats {
    /// Requests sent, including retries by the client.
    pub requests: Counter,
    /// Responses whose round-trip time was measured.
    pub responses: Counter,
    /// The sum of their round-trip times in seconds.
    pub round_trip_seconds: Counter<f64, AtomicU64>,
    /// Requests sent again.
    pub retries: Counter,
    /// Requests that could not be sent, and responses that could not be read.
    pub errors: Counter,
    /// Requests that timed out.
    pub timeouts: Counter,
    /// Attempts to connect to a broker.
    pub connects: Counter,
    /// Connections that ended.
    pub disconnects: Counter,
    /// Bytes sent to brokers.
    pub sent_bytes: Counter,
    /// Bytes received from brokers.
    pub received_bytes: Counter,
    /// Requests that wait for a response.
    pub in_flight: Gauge,
    /// Requests that wait to be sent.
    pub waiting: Gauge,
    /// Records sent and not acknowledged.
    pub queued: Gauge,
    /// Their size in bytes.
    pub queued_bytes: Gauge,
    /// How long a broker has delayed a request because of a quota, at most.
    pub throttle_seconds: Gauge<f64, AtomicU64>,
    /// The recent 99th percentile of a broker's round-trip time in seconds.
    pub broker_seconds: PerLabel<Gauge<f64, AtomicU64>>,
    /// The label of a broker is its number.
    pub brokers: Named,
}

impl Default for ClientStats {
    fn default() -> Self {
        ClientStats {
            requests: Counter::default(),
            responses: Counter::default(),
            round_trip_seconds: Counter::default(),
            retries: Counter::default(),
            errors: Counter::default(),
            timeouts: Counter::default(),
            connects: Counter::default(),
            disconnects: Counter::default(),
            sent_bytes: Counter::default(),
            received_bytes: Counter::default(),
            in_flight: Gauge::default(),
            waiting: Gauge::default(),
            queued: Gauge::default(),
            queued_bytes: Gauge::default(),
            throttle_seconds: Gauge::default(),
            broker_seconds: PerLabel::default(),
            brokers: Named::new("broker", BROKERS_NAMED_MAX),
        }
    }
}
