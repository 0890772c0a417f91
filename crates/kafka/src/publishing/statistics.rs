//! The statistics that librdkafka reports for each producer every `statistics.interval.ms`, summed over all producers.
//!
//! Each producer counts from 0, and is replaced after a failure. So the difference from its previous report is added, and
//! no counter ever decreases. What a producer did after its last report is not counted.

use prometheus_client::metrics::counter::Counter;
use relay::health::stats::ClientStats;
use relay::health::stats::Stats;
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The statistics of all producers of a cluster.
pub(crate) struct Statistics {
    stats: Arc<Stats>,
    next: AtomicU64,
    /// The last report of each current producer.
    live: Mutex<HashMap<u64, Latest>>,
}

/// One producer. It is forgotten when this is dropped.
pub(crate) struct Watched {
    statistics: Arc<Statistics>,
    number: u64,
}

#[derive(Default)]
struct Latest {
    counted: [u64; COUNTED.len()],
    queued: i64,
    queued_bytes: i64,
    in_flight: i64,
    waiting: i64,
    throttle_ms: u64,
    /// By broker ID.
    p99_seconds: HashMap<i64, f64>,
}

/// The part of librdkafka's JSON that is used. STATISTICS.md of librdkafka describes all of it.
#[derive(Deserialize)]
struct Client {
    msg_cnt: i64,
    msg_size: i64,
    brokers: HashMap<String, Broker>,
}

#[derive(Deserialize)]
struct Broker {
    nodeid: i64,
    outbuf_cnt: i64,
    waitresp_cnt: i64,
    tx: u64,
    txbytes: u64,
    txerrs: u64,
    txretries: u64,
    req_timeouts: u64,
    rxbytes: u64,
    rxerrs: u64,
    connects: u64,
    disconnects: u64,
    rtt: RoundTrips,
    #[serde(default)]
    throttle: Throttle,
}

/// The delays in milliseconds that the broker has imposed since the previous report.
#[derive(Default, Deserialize)]
struct Throttle {
    max: u64,
}

/// Round-trip times of the requests answered since the previous report, in microseconds.
#[derive(Deserialize)]
struct RoundTrips {
    sum: u64,
    cnt: u64,
    p99: u64,
}

type Field = fn(&Broker) -> u64;
type Metric = fn(&ClientStats) -> &Counter;

/// The counters of a broker, and the metrics to which they are added.
const COUNTED: [(Field, Metric); 8] = [
    (|broker| broker.tx, |client| &client.requests),
    (|broker| broker.txretries, |client| &client.retries),
    (|broker| broker.txerrs + broker.rxerrs, |client| &client.errors),
    (|broker| broker.req_timeouts, |client| &client.timeouts),
    (|broker| broker.connects, |client| &client.connects),
    (|broker| broker.disconnects, |client| &client.disconnects),
    (|broker| broker.txbytes, |client| &client.sent_bytes),
    (|broker| broker.rxbytes, |client| &client.received_bytes),
];

impl Statistics {
    pub(crate) fn new(stats: Arc<Stats>) -> Statistics {
        Statistics { stats, next: AtomicU64::new(0), live: Mutex::default() }
    }

    /// Registers a producer that is about to be created.
    pub(crate) fn watch(self: &Arc<Self>) -> Watched {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Watched { statistics: Arc::clone(self), number }
    }

    fn set_gauges(&self, live: &HashMap<u64, Latest>) {
        let client = &self.stats.client;
        let sum = |read: fn(&Latest) -> i64| live.values().map(read).sum();
        client.queued.set(sum(|latest| latest.queued));
        client.queued_bytes.set(sum(|latest| latest.queued_bytes));
        client.in_flight.set(sum(|latest| latest.in_flight));
        client.waiting.set(sum(|latest| latest.waiting));
        let throttle = live.values().map(|latest| latest.throttle_ms).max().unwrap_or_default();
        client.throttle_seconds.set(throttle as f64 / 1e3);
        let mut slowest: HashMap<i64, f64> = HashMap::new();
        for (broker, seconds) in live.values().flat_map(|latest| &latest.p99_seconds) {
            let slower = slowest.entry(*broker).or_default();
            *slower = slower.max(*seconds);
        }
        client.broker_seconds.clear();
        for (broker, seconds) in slowest {
            client.broker_seconds.get_or_create(&client.brokers.label(&broker.to_string())).set(seconds);
        }
    }
}

impl Watched {
    /// Processes a report of the producer. Reports that cannot be parsed are ignored, because librdkafka may change them.
    pub(crate) fn update(&self, json: &[u8]) {
        let report: Client = match serde_json::from_slice(json) {
            Ok(report) => report,
            Err(error) => {
                return tracing::debug!(target: "librdkafka", "cannot parse statistics: {error}");
            }
        };
        let mut live = self.statistics.live.lock().unwrap_or_else(PoisonError::into_inner);
        let latest = live.entry(self.number).or_default();
        latest.update(&report, &self.statistics.stats.client);
        if latest.throttle_ms > 0 {
            self.statistics.stats.notes.throttled(Duration::from_millis(latest.throttle_ms));
        }
        self.statistics.set_gauges(&live);
    }
}

impl Latest {
    fn update(&mut self, report: &Client, client: &ClientStats) {
        let brokers = || report.brokers.values();
        for (before, (field, metric)) in self.counted.iter_mut().zip(COUNTED) {
            // Compare sums over all brokers, because a broker gets another name when its ID becomes known. If a broker is
            // gone, the sum decreases, and counting continues from there.
            let now: u64 = brokers().map(field).sum();
            metric(client).inc_by(now - now.min(*before));
            *before = now;
        }
        self.throttle_ms = brokers().map(|broker| broker.throttle.max).max().unwrap_or_default();
        self.queued = report.msg_cnt;
        self.queued_bytes = report.msg_size;
        self.in_flight = brokers().map(|broker| broker.waitresp_cnt).sum();
        self.waiting = brokers().map(|broker| broker.outbuf_cnt).sum();
        for broker in brokers().filter(|broker| broker.rtt.cnt > 0) {
            client.responses.inc_by(broker.rtt.cnt);
            client.round_trip_seconds.inc_by(broker.rtt.sum as f64 / 1e6);
            // Bootstrap brokers have negative IDs.
            if broker.nodeid >= 0 {
                self.p99_seconds.insert(broker.nodeid, broker.rtt.p99 as f64 / 1e6);
            }
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut live = self.statistics.live.lock().unwrap_or_else(PoisonError::into_inner);
        if live.remove(&self.number).is_some() {
            self.statistics.set_gauges(&live);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The report of a producer with one broker after this many requests.
    fn report(name: &str, broker: i64, requests: u64) -> String {
        format!(
            r#"{{"name": "x", "msg_cnt": 7, "msg_size": 700, "topics": {{"t": {{"partitions": {{}}}}}},
            "brokers": {{"{name}": {{"nodeid": {broker}, "outbuf_cnt": 1, "waitresp_cnt": 2, "tx": {requests},
            "txbytes": 10, "txerrs": 1, "txretries": 3, "req_timeouts": 0, "rxbytes": 20, "rxerrs": 1, "connects": 1,
            "disconnects": 0, "rtt": {{"min": 1, "sum": 5000000, "cnt": 10, "p99": 750000}}}}}}, "tx": 5}}"#
        )
    }

    #[test]
    fn counters_continue_when_a_producer_is_replaced() {
        let stats = Arc::new(Stats::new());
        let client = &stats.client;
        let statistics = Arc::new(Statistics::new(Arc::clone(&stats)));
        let first = statistics.watch();
        first.update(report("kafka:9092/bootstrap", -1, 100).as_bytes());
        first.update(report("kafka:9092/1", 1, 150).as_bytes());
        assert_eq!(client.requests.get(), 150, "the same broker with another name");
        assert_eq!((client.errors.get(), client.retries.get(), client.received_bytes.get()), (2, 3, 20));
        let second = statistics.watch();
        second.update(report("kafka:9092/1", 1, 5).as_bytes());
        assert_eq!((client.queued.get(), client.in_flight.get()), (14, 4), "of both");
        drop(first);
        assert_eq!((client.queued.get(), client.in_flight.get()), (7, 2), "of the one that is left");
        second.update(report("kafka:9092/1", 1, 30).as_bytes());
        assert_eq!(client.requests.get(), 180);
        assert_eq!((client.responses.get(), client.round_trip_seconds.get()), (40, 20.0));
        let seconds =
            |broker| client.broker_seconds.get(&client.brokers.label(broker)).map(|gauge| gauge.get());
        assert_eq!(seconds("1"), Some(0.75));
        assert_eq!(seconds("-1"), None, "a broker without a number is not shown");
        drop(second);
        assert_eq!((client.queued.get(), seconds("1")), (0, None));
        assert_eq!(client.requests.get(), 180);
    }

    #[test]
    fn counters_do_not_decrease_when_a_broker_is_gone() {
        let stats = Arc::new(Stats::new());
        let producer = Arc::new(Statistics::new(Arc::clone(&stats))).watch();
        for requests in [100, 40, 50] {
            producer.update(report("kafka:9092/1", 1, requests).as_bytes());
        }
        assert_eq!(stats.client.requests.get(), 110);
        producer.update(b"{}");
        assert_eq!(stats.client.requests.get(), 110);
    }
}
