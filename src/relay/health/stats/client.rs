//! What the Kafka client says of its own work, over all producers that there were.

use super::labels::{Named, PerLabel};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use std::sync::atomic::AtomicU64;

/// No more brokers than this are named in metrics.
const BROKERS_NAMED_MAX: usize = 50;

/// The counters go on when a producer is replaced; the gauges are of the producers that there are now.
pub struct ClientStats {
    /// Requests that were sent, the client's own repetitions included.
    pub requests: Counter,
    /// Answers whose time was taken.
    pub responses: Counter,
    /// Seconds from request to answer, over all of these.
    pub round_trip_seconds: Counter<f64, AtomicU64>,
    /// Requests that were sent again.
    pub retries: Counter,
    /// Requests that could not be sent, and answers that could not be read.
    pub errors: Counter,
    /// Requests without an answer in time.
    pub timeouts: Counter,
    /// Attempts to connect to a broker.
    pub connects: Counter,
    /// Connections that ended.
    pub disconnects: Counter,
    /// Bytes to brokers.
    pub sent_bytes: Counter,
    /// Bytes from brokers.
    pub received_bytes: Counter,
    /// Requests that wait for an answer.
    pub in_flight: Gauge,
    /// Requests that wait to be sent.
    pub waiting: Gauge,
    /// Records handed over and not acknowledged.
    pub queued: Gauge,
    /// Their bytes.
    pub queued_bytes: Gauge,
    /// Seconds that 99 of 100 answers of a broker took at most, of late.
    pub broker_seconds: PerLabel<Gauge<f64, AtomicU64>>,
    /// The label of a broker: its number.
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
            broker_seconds: PerLabel::default(),
            brokers: Named::new("broker", BROKERS_NAMED_MAX),
        }
    }
}
