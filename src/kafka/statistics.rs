//! What librdkafka tells of each producer every `statistics.interval.ms`, added up over all producers that there were.
//!
//! A producer counts from its own beginning, and is replaced after each failure: so what is added is the difference to what
//! the same producer told before, and no counter ever goes back. What it did after it last told is lost with it.

use crate::relay::health::stats::Stats;
use crate::relay::health::stats::client::ClientStats;
use prometheus_client::metrics::counter::Counter;
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The figures of all producers of a cluster.
pub(super) struct Statistics {
    stats: Arc<Stats>,
    next: AtomicU64,
    /// What each producer that there is has told last.
    live: Mutex<HashMap<u64, Told>>,
}

/// One producer. It is forgotten when this is dropped.
pub(super) struct Watched {
    statistics: Arc<Statistics>,
    number: u64,
}

#[derive(Default)]
struct Told {
    counted: [u64; COUNTED.len()],
    queued: i64,
    queued_bytes: i64,
    in_flight: i64,
    waiting: i64,
    /// By the number of the broker.
    p99_seconds: HashMap<i64, f64>,
}

/// The part of librdkafka's JSON that is used; STATISTICS.md of librdkafka has the whole.
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
}

/// In microseconds, of the requests that were answered since the producer told before.
#[derive(Deserialize)]
struct RoundTrips {
    sum: u64,
    cnt: u64,
    p99: u64,
}

type Read = fn(&Broker) -> u64;
type Place = fn(&ClientStats) -> &Counter;

/// What a broker's figures count, and where that is added.
const COUNTED: [(Read, Place); 8] = [
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
    /// Adds up in these.
    pub(super) fn new(stats: Arc<Stats>) -> Statistics {
        Statistics { stats, next: AtomicU64::new(0), live: Mutex::default() }
    }

    /// A producer that is about to be made.
    pub(super) fn watch(self: &Arc<Self>) -> Watched {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Watched { statistics: Arc::clone(self), number }
    }

    fn show(&self, live: &HashMap<u64, Told>) {
        let client = &self.stats.client;
        let sum = |read: fn(&Told) -> i64| live.values().map(read).sum();
        client.queued.set(sum(|told| told.queued));
        client.queued_bytes.set(sum(|told| told.queued_bytes));
        client.in_flight.set(sum(|told| told.in_flight));
        client.waiting.set(sum(|told| told.waiting));
        let mut slowest: HashMap<i64, f64> = HashMap::new();
        for (broker, seconds) in live.values().flat_map(|told| &told.p99_seconds) {
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
    /// Takes in what the producer tells. What cannot be read is left out: a later version of librdkafka may tell otherwise.
    pub(super) fn take_in(&self, json: &[u8]) {
        let told: Client = match serde_json::from_slice(json) {
            Ok(told) => told,
            Err(error) => {
                return tracing::debug!(target: "librdkafka", "cannot parse statistics: {error}");
            }
        };
        let mut live = self.statistics.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.entry(self.number).or_default().take_in(&told, &self.statistics.stats.client);
        self.statistics.show(&live);
    }
}

impl Told {
    fn take_in(&mut self, told: &Client, client: &ClientStats) {
        let brokers = || told.brokers.values();
        for (before, (read, place)) in self.counted.iter_mut().zip(COUNTED) {
            // Over all brokers: a broker gets another name when its number is learned. When one has gone, the sum is
            // less than it was, and counting goes on from there.
            let now: u64 = brokers().map(read).sum();
            place(client).inc_by(now - now.min(*before));
            *before = now;
        }
        self.queued = told.msg_cnt;
        self.queued_bytes = told.msg_size;
        self.in_flight = brokers().map(|broker| broker.waitresp_cnt).sum();
        self.waiting = brokers().map(|broker| broker.outbuf_cnt).sum();
        for broker in brokers().filter(|broker| broker.rtt.cnt > 0) {
            client.responses.inc_by(broker.rtt.cnt);
            client.round_trip_seconds.inc_by(broker.rtt.sum as f64 / 1e6);
            // Those below 0 are known by their address only.
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
            self.statistics.show(&live);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a producer with one broker tells that has sent so many requests.
    fn told(name: &str, broker: i64, requests: u64) -> String {
        format!(
            r#"{{"name": "x", "msg_cnt": 7, "msg_size": 700, "topics": {{"t": {{"partitions": {{}}}}}},
            "brokers": {{"{name}": {{"nodeid": {broker}, "outbuf_cnt": 1, "waitresp_cnt": 2, "tx": {requests},
            "txbytes": 10, "txerrs": 1, "txretries": 3, "req_timeouts": 0, "rxbytes": 20, "rxerrs": 1, "connects": 1,
            "disconnects": 0, "rtt": {{"min": 1, "sum": 5000000, "cnt": 10, "p99": 750000}}}}}}, "tx": 5}}"#
        )
    }

    #[test]
    fn counters_go_on_when_a_producer_is_replaced() {
        let stats = Arc::new(Stats::new());
        let client = &stats.client;
        let statistics = Arc::new(Statistics::new(Arc::clone(&stats)));
        let first = statistics.watch();
        first.take_in(told("kafka:9092/bootstrap", -1, 100).as_bytes());
        first.take_in(told("kafka:9092/1", 1, 150).as_bytes());
        assert_eq!(client.requests.get(), 150, "the broker has another name, and is the same");
        assert_eq!((client.errors.get(), client.retries.get(), client.received_bytes.get()), (2, 3, 20));
        let second = statistics.watch();
        second.take_in(told("kafka:9092/1", 1, 5).as_bytes());
        assert_eq!((client.queued.get(), client.in_flight.get()), (14, 4), "of both");
        drop(first);
        assert_eq!((client.queued.get(), client.in_flight.get()), (7, 2), "of the one that is left");
        second.take_in(told("kafka:9092/1", 1, 30).as_bytes());
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
    fn a_broker_that_has_gone_takes_nothing_back() {
        let stats = Arc::new(Stats::new());
        let producer = Arc::new(Statistics::new(Arc::clone(&stats))).watch();
        for requests in [100, 40, 50] {
            producer.take_in(told("kafka:9092/1", 1, requests).as_bytes());
        }
        assert_eq!(stats.client.requests.get(), 110);
        producer.take_in(b"{}");
        assert_eq!(stats.client.requests.get(), 110);
    }
}
