//! The callbacks of librdkafka: delivery reports, errors, log lines and statistics.
//!
//! Critical log lines, for example that a thread cannot start, are repeated by each producer at each attempt, and nothing
//! reports when their cause is gone. So each kind is logged at most every ten minutes.

use crate::confirmation::Confirmation;
use crate::errors::failure;
use crate::limits::LearnedLimits;
use crate::tokens::{Tokens, issued};
use prometheus_client::metrics::counter::Counter;
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::producer::{DeliveryResult, ProducerContext};
use relay::failure::{FailureKind, KafkaFailure};
use relay::health::availability::Episodes;
use relay::health::stats::{Stats, lock};
use relay::publisher::DeliveryReport;
use relay::reason::{
    AUTHENTICATION, BROKERS_DOWN, CONNECTION_LOST, NO_OFFSET, OTHER_CLUSTER, RECORD_TOO_LARGE, Reason,
    SMALLER_BATCHES, TLS, TOKEN,
};
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The error that all brokers are down follows its cause within this time.
const CAUSE_WITHIN: Duration = Duration::from_secs(10);

/// A broker that refuses an older producer may accept one with the current password, certificate and authorities.
const CURRENT_FOR: Duration = Duration::from_secs(10);

/// The reports of one producer. Its polling thread writes them and wakes the worker once per batch.
#[derive(Default)]
pub(crate) struct Reports {
    list: Mutex<Vec<DeliveryReport>>,
    in_flight: AtomicUsize,
    pub(crate) confirmation: Confirmation,
    failed: AtomicBool,
    /// When the producer got its producer ID.
    identified_at: OnceLock<Instant>,
    /// The client had a fatal error and accepts no more records.
    fatal: AtomicBool,
    /// Each broker had a connection that failed or could not be opened. Meanwhile, another address may have accepted one.
    all_down: AtomicBool,
    /// The worker waits for any report, not only for the last one.
    any: AtomicBool,
    /// The cluster refuses the producer altogether. Delivery reports do not contain this.
    refused: Mutex<Option<KafkaFailure>>,
    /// The last refusal of a login or a TLS connection by a broker, and when it was reported. Other brokers may accept them.
    refused_by_broker: Mutex<Option<(Instant, KafkaFailure)>>,
    /// The client's last error, and when it was reported.
    last_error: Mutex<Option<(Instant, String)>>,
    wake: Notify,
}

impl Reports {
    /// Expects a report. Called before a row is sent.
    pub(crate) fn expect(&self) {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
    }

    /// Expects one report fewer, because the client did not accept the row.
    pub(crate) fn withdraw(&self) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(crate) fn is_identified(&self) -> bool {
        self.identified_at.get().is_some()
    }

    pub(crate) fn is_fatal(&self) -> bool {
        self.fatal.load(Ordering::Acquire)
    }

    pub(crate) fn were_all_down(&self) -> bool {
        self.all_down.load(Ordering::Acquire)
    }

    /// A broker has answered.
    pub(crate) fn answered(&self) {
        self.all_down.store(false, Ordering::Release);
    }

    pub(crate) fn take(&self, reports: &mut Vec<DeliveryReport>) {
        let mut list = lock(&self.list);
        if reports.is_empty() {
            std::mem::swap(&mut *list, reports);
        } else {
            reports.append(&mut list);
        }
    }

    /// Why the cluster refuses the producer, if it does.
    pub(crate) fn refused(&self) -> Option<KafkaFailure> {
        lock(&self.refused).clone()
    }

    /// Why a broker has refused a connection of the producer.
    pub(crate) fn refused_by_broker(&self) -> Option<KafkaFailure> {
        lock(&self.refused_by_broker).as_ref().map(|(_, failure)| failure.clone())
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        lock(&self.last_error).as_ref().map(|(_, error)| error.clone())
    }

    /// The last error, if it is at most this old.
    pub(crate) fn recent_error(&self, max_age: Duration) -> Option<String> {
        let last = lock(&self.last_error);
        last.as_ref().filter(|(at, _)| at.elapsed() <= max_age).map(|(_, error)| error.clone())
    }

    fn note_error(&self, error: &str) {
        *lock(&self.last_error) = Some((Instant::now(), error.to_owned()));
    }

    /// Notes that all brokers are down, unless the previous error is its cause. If a broker has just refused a connection, no
    /// broker accepts the producer.
    fn note_brokers_down(&self, error: &str) {
        if self.recent_error(CAUSE_WITHIN).is_none() {
            self.note_error(error);
        }
        let refusal = lock(&self.refused_by_broker).clone();
        if let Some((_, failure)) = refusal.filter(|(at, _)| at.elapsed() <= CAUSE_WITHIN) {
            self.refuse(failure);
        }
    }

    /// Waits until `done` returns true or, with `any`, until there is a report.
    pub(crate) async fn wait(&self, any: bool, done: impl Fn(&Reports) -> bool) {
        self.any.store(any, Ordering::Release);
        loop {
            let changed = self.wake.notified();
            if done(self) || (any && !lock(&self.list).is_empty()) {
                return;
            }
            changed.await;
        }
    }

    fn refuse(&self, failure: KafkaFailure) {
        *lock(&self.refused) = Some(failure);
        self.raise(&self.failed);
    }

    fn raise(&self, flag: &AtomicBool) {
        flag.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    pub(crate) fn report(&self, index: usize, outcome: Result<(), KafkaFailure>) {
        let failed = outcome.is_err();
        lock(&self.list).push(DeliveryReport { index: index as u32, outcome });
        if failed {
            self.failed.store(true, Ordering::Release);
        }
        let last = self.in_flight.fetch_sub(1, Ordering::AcqRel) == 1;
        if last || failed || self.any.load(Ordering::Acquire) {
            self.wake.notify_one();
        }
    }
}

#[derive(Default)]
pub(crate) struct Context {
    pub reports: Reports,
    pub critical_logs: Arc<CriticalLogs>,
    /// For SASL OAUTHBEARER.
    pub tokens: Option<Arc<Tokens>>,
    pub watched: Option<Watched>,
    pub learned: Arc<LearnedLimits>,
    /// The largest request of the producer.
    pub request_bytes: usize,
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        issued(self.tokens.as_ref())
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // librdkafka reports only in its log that the producer has its ID.
        if facility == "IDEMPSTATE" && message.ends_with("-> Assigned") {
            self.reports.identified_at.get_or_init(Instant::now);
            self.reports.wake.notify_one();
        }
        // It reports a connection only here, too: with the first line of a list, which precedes all delivery reports of the connection.
        // It sends no records on bootstrap connections.
        if facility == "APIVERSION" && matches!(level, RDKafkaLogLevel::Debug) {
            if message.ends_with("Broker API support:") && !message.contains("/bootstrap: ") {
                self.reports.confirmation.connected();
            }
            return;
        }
        // librdkafka retries by itself and reports the cause of a missing producer ID only here.
        if facility == "GETPID" && message.contains("Failed to acquire") {
            self.reports.note_error(message);
        }
        // The brokers' names lead to another cluster now. librdkafka would publish to it.
        if facility == "CLUSTERID" && matches!(level, RDKafkaLogLevel::Warning) {
            self.reports.refuse(OTHER_CLUSTER.failure(message));
        }
        let is_critical =
            matches!(level, RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical);
        // After a fatal error, the relay replaces the producer and reports the failure itself.
        if is_critical && facility != "FATAL" {
            self.critical_logs.log(facility, message);
        } else {
            // The relay logs state changes once, while librdkafka repeats them for each broker and attempt.
            tracing::debug!(target: "librdkafka", "{facility}: {message}");
        }
    }

    // Not `stats`, which would also parse the unused statistics of every partition.
    fn stats_raw(&self, statistics: &[u8]) {
        if let Some(watched) = &self.watched {
            watched.update(statistics);
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", "{error}: {reason}");
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown) {
            // librdkafka counts the brokers again for its text, which may then be "0/1 brokers are down".
            self.reports.note_brokers_down("all brokers are down");
            self.reports.all_down.store(true, Ordering::Release);
        } else {
            self.reports.note_error(reason);
        }
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
            self.reports.raise(&self.reports.fatal);
        }
        if self.reports.is_identified() && reason.contains(LOGIN_TOO_SOON) {
            return;
        }
        let Some(why) = error.rdkafka_error_code().map(|code| reason_of(code, reason)) else { return };
        if *why == AUTHENTICATION {
            self.tokens.iter().for_each(|tokens| tokens.reject());
        }
        if [AUTHENTICATION, TLS].contains(why) {
            // The other brokers may accept the producer. If none does, all of them count as down.
            *lock(&self.reports.refused_by_broker) = Some((Instant::now(), why.failure(reason)));
            if self.reports.identified_at.get().is_some_and(|at| at.elapsed() >= CURRENT_FOR) {
                // Kafka is unavailable only if it refuses a new producer, too.
                let kind = FailureKind::Session;
                self.reports.refuse(KafkaFailure { kind, ..why.failure(reason) });
            }
        } else if why.kind == FailureKind::Cluster && *why != BROKERS_DOWN {
            // Brokers that are down may be back within publish_timeout, and the producer then continues by itself.
            self.reports.refuse(why.failure(reason));
        }
    }
}

/// A broker's answer to a second login within a second on one connection (KIP-368). librdkafka tries that when its token is about to
/// expire, and then reconnects. For a new client, the answer means that the port does not use SASL.
const LOGIN_TOO_SOON: &str = "Request not valid in current SASL state";

/// A connection that was lost, or a broker that did not answer, before the login. librdkafka reports it as a failed login.
const HANDSHAKE_LOST: [&str; 2] =
    ["handshake failed: Local: Broker transport failure", "handshake failed: Local: Timed out"];

/// Distinguishes three cases that share a code with others: there is no token, a connection was lost before the login, and a
/// broker refused the client's certificate. The client takes the latter for a broken connection, because its side of the
/// handshake had already succeeded.
fn reason_of(code: RDKafkaErrorCode, text: &str) -> &'static Reason {
    match code {
        RDKafkaErrorCode::Authentication if text.contains("Failed to acquire SASL OAUTHBEARER token") => {
            &TOKEN
        }
        RDKafkaErrorCode::Authentication if HANDSHAKE_LOST.iter().any(|lost| text.contains(lost)) => {
            &CONNECTION_LOST
        }
        RDKafkaErrorCode::BrokerTransportFailure
            if text.contains("SSL routines") && text.contains(" alert ") =>
        {
            &TLS
        }
        code => crate::errors::reason(code),
    }
}

/// The size of a record without its headers' framing.
fn size(message: &BorrowedMessage<'_>) -> usize {
    let headers = message.headers().map_or(0, |headers| {
        headers.iter().map(|header| header.key.len() + header.value.map_or(0, <[u8]>::len)).sum()
    });
    message.payload_len() + message.key_len() + headers
}

impl ProducerContext for Context {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, index: usize) {
        let outcome = match result {
            // A success without an offset does not count. librdkafka reports it when the broker took the request for a
            // duplicate because a later one of the producer was stored.
            Ok(message) if message.offset() < 0 => {
                Err(NO_OFFSET.failure("Kafka acknowledged the record without an offset"))
            }
            Ok(message) if self.reports.confirmation.keeps(index, message.topic()) => return,
            Ok(_) => Ok(()),
            Err((error, message)) => {
                let failure = failure("publishing", error);
                let learns = || self.learned.refused(message.topic(), size(message), self.request_bytes);
                if failure.reason == RECORD_TOO_LARGE.word && learns() {
                    let error = format!("{}; the next producer sends smaller requests", failure.error);
                    Err(SMALLER_BATCHES.failure(error))
                } else {
                    Err(failure)
                }
            }
        };
        self.reports.report(index, outcome);
    }
}

const LOGGED_EVERY: Duration = Duration::from_secs(600);

/// The critical lines of all producers of a cluster.
#[derive(Default)]
pub(crate) struct CriticalLogs(Mutex<Episodes<String>>);

impl CriticalLogs {
    /// Logs the line, unless one of this kind was logged recently.
    pub(crate) fn log(&self, kind: &str, message: &str) {
        match self.suppressed(kind) {
            None => tracing::debug!(target: "librdkafka", "{kind}: {message}"),
            Some(suppressed) => tracing::error!(
                target: "librdkafka", code = "librdkafka_critical", suppressed,
                "{kind}: {message}. Check whether the host has run out of threads, file descriptors or memory. If \
                 events of a topic still wait afterwards, restart the relay"
            ),
        }
    }

    /// How many lines were suppressed since the last logged one. `None` if this line is suppressed too.
    fn suppressed(&self, kind: &str) -> Option<u64> {
        let mut kinds = lock(&self.0);
        let before = kinds.end(|logged, episode| logged == kind && episode.age() >= LOGGED_EVERY).pop();
        kinds.begins(kind.to_owned()).then(|| before.map_or(0, |(_, before)| before.times - 1))
    }
}

/// The statistics of all producers of a cluster, each every `statistics.interval.ms`, as sums.
///
/// Each producer counts from 0, and is replaced after a failure. So the difference from its previous report is added, and no
/// counter ever decreases. What a producer did after its last report is not counted.
pub(crate) struct Statistics {
    stats: Arc<Stats>,
    next: AtomicU64,
    /// The last report of each current producer.
    live: Mutex<HashMap<u64, Counts>>,
}

/// One producer. It is forgotten when this is dropped.
pub(crate) struct Watched {
    statistics: Arc<Statistics>,
    number: u64,
}

/// The part of librdkafka's report that is used. STATISTICS.md of librdkafka describes all of it.
#[derive(Default, Deserialize)]
struct Counts {
    msg_cnt: i64,
    msg_size: i64,
    brokers: HashMap<String, Broker>,
}

#[derive(Deserialize)]
struct Broker {
    nodeid: i32,
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

/// The round-trip times in microseconds of the requests that were answered since the previous report.
#[derive(Deserialize)]
struct RoundTrips {
    sum: u64,
    cnt: u64,
    p99: u64,
}

/// The delays in milliseconds that the broker has imposed since the previous report.
#[derive(Default, Deserialize)]
struct Throttle {
    max: u64,
}

type Field = fn(&Broker) -> u64;
type Metric = fn(&Stats) -> &Counter;

/// The counters of a broker, and the metrics to which they are added.
const COUNTED: [(Field, Metric); 8] = [
    (|broker| broker.tx, |client| &client.kafka_requests),
    (|broker| broker.txretries, |client| &client.kafka_request_retries),
    (|broker| broker.txerrs + broker.rxerrs, |client| &client.kafka_request_errors),
    (|broker| broker.req_timeouts, |client| &client.kafka_request_timeouts),
    (|broker| broker.connects, |client| &client.kafka_connects),
    (|broker| broker.disconnects, |client| &client.kafka_disconnects),
    (|broker| broker.txbytes, |client| &client.kafka_sent_bytes),
    (|broker| broker.rxbytes, |client| &client.kafka_received_bytes),
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

    fn set_gauges(&self, live: &HashMap<u64, Counts>) {
        let client = &self.stats;
        let sum = |read: fn(&Counts) -> i64| live.values().map(read).sum();
        client.kafka_queued.set(sum(|report| report.msg_cnt));
        client.kafka_queued_bytes.set(sum(|report| report.msg_size));
        client.kafka_in_flight.set(sum(|report| report.brokers.values().map(|at| at.waitresp_cnt).sum()));
        client.kafka_waiting.set(sum(|report| report.brokers.values().map(|at| at.outbuf_cnt).sum()));
        let throttle_ms = live.values().map(Counts::throttle_ms).max().unwrap_or_default();
        client.kafka_throttle_seconds.set(throttle_ms as f64 / 1e3);
        // A broker that no longer responds, or is gone, has no value. Bootstrap brokers have negative IDs.
        let mut slowest: HashMap<i32, u64> = HashMap::new();
        for broker in live.values().flat_map(Counts::responding).filter(|broker| broker.nodeid >= 0) {
            let slower = slowest.entry(broker.nodeid).or_default();
            *slower = broker.rtt.p99.max(*slower);
        }
        client.kafka_broker_seconds.clear();
        for (broker, p99) in slowest {
            let gauge = client.kafka_broker_seconds.at([client.brokers.value(&broker.to_string())]);
            gauge.set(p99 as f64 / 1e6);
        }
    }
}

impl Watched {
    /// Processes a report of the producer. Reports that cannot be parsed are ignored, because librdkafka may change them.
    pub(crate) fn update(&self, json: &[u8]) {
        let report: Counts = match serde_json::from_slice(json) {
            Ok(report) => report,
            Err(error) => {
                return tracing::debug!(target: "librdkafka", "cannot parse statistics: {error}");
            }
        };
        let (mut live, client) = (lock(&self.statistics.live), &self.statistics.stats);
        let throttle_ms = report.throttle_ms();
        report.count_since(&live.remove(&self.number).unwrap_or_default(), client);
        if throttle_ms > 0 {
            client.notes.throttled(Duration::from_millis(throttle_ms));
        }
        live.insert(self.number, report);
        self.statistics.set_gauges(&live);
    }
}

impl Counts {
    fn throttle_ms(&self) -> u64 {
        self.brokers.values().map(|broker| broker.throttle.max).max().unwrap_or_default()
    }

    /// The brokers that have responded since the previous report.
    fn responding(&self) -> impl Iterator<Item = &Broker> {
        self.brokers.values().filter(|broker| broker.rtt.cnt > 0)
    }

    fn count_since(&self, previous: &Counts, client: &Stats) {
        for (field, metric) in COUNTED {
            // Compare sums over all brokers, because a broker gets another name when its ID becomes known. If a broker is
            // gone, the sum decreases, and counting continues from there.
            let sum = |report: &Counts| report.brokers.values().map(field).sum::<u64>();
            let (before, now) = (sum(previous), sum(self));
            metric(client).inc_by(now - now.min(before));
        }
        for broker in self.responding() {
            client.kafka_responses.inc_by(broker.rtt.cnt);
            client.kafka_round_trip_seconds.inc_by(broker.rtt.sum as f64 / 1e6);
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut live = lock(&self.statistics.live);
        if live.remove(&self.number).is_some() {
            self.statistics.set_gauges(&live);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tokio::time::advance;

    #[test]
    fn producer_that_meets_another_cluster_is_refused() {
        let context = Context::default();
        context.log(RDKafkaLogLevel::Debug, "CLUSTERID", "ClusterId update \"\" -> \"a\"");
        assert!(!context.reports.has_failed());
        context.log(RDKafkaLogLevel::Warning, "CLUSTERID", "Broker b:9092 reports different ClusterId");
        assert!(context.reports.has_failed());
        assert_eq!(context.reports.refused().unwrap().reason, OTHER_CLUSTER.word);
    }

    #[test]
    fn a_login_that_is_repeated_too_soon_is_no_failure_of_a_producer_that_works() {
        let text = format!("SASL OAUTHBEARER mechanism handshake failed: Broker: {LOGIN_TOO_SOON}: ...");
        let fails = |context: &Context| {
            context.error(KafkaError::Global(RDKafkaErrorCode::Authentication), &text);
            context.error(KafkaError::Global(RDKafkaErrorCode::AllBrokersDown), DOWN);
            context.reports.has_failed()
        };
        assert!(fails(&Context::default()), "the port does not use SASL");
        let context = Context::default();
        context.log(RDKafkaLogLevel::Debug, "IDEMPSTATE", "WaitPID -> Assigned");
        assert!(!fails(&context));
    }

    const DOWN: &str = "1/1 brokers are down";

    #[tokio::test(start_paused = true)]
    async fn a_broker_that_refuses_the_producer_fails_it_only_if_no_other_broker_is_up() {
        let refusals = [
            (RDKafkaErrorCode::SSL, "SSL handshake failed: certificate verify failed", TLS),
            (
                RDKafkaErrorCode::BrokerTransportFailure,
                "SSL routines::tlsv13 alert certificate required",
                TLS,
            ),
            (
                RDKafkaErrorCode::Authentication,
                "SASL authentication error: Authentication failed",
                AUTHENTICATION,
            ),
        ];
        for identified in [false, true] {
            for (code, text, why) in &refusals {
                let context = Context::default();
                if identified {
                    context.log(RDKafkaLogLevel::Debug, "IDEMPSTATE", "WaitPID -> Assigned");
                }
                context.error(KafkaError::Global(*code), text);
                assert!(!context.reports.has_failed() && context.reports.refused().is_none(), "{text}");
                let refusal = context.reports.refused_by_broker().unwrap();
                assert_eq!((refusal.reason, refusal.error.as_str()), (why.word, *text));
                assert_eq!(context.reports.last_error().as_deref(), Some(*text));
                context.error(KafkaError::Global(RDKafkaErrorCode::AllBrokersDown), DOWN);
                assert!(context.reports.has_failed(), "{text}");
                assert_eq!(context.reports.refused().unwrap().reason, why.word);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_producer_that_may_have_an_old_password_is_replaced_if_one_broker_refuses_it() {
        let context = Context::default();
        context.log(RDKafkaLogLevel::Debug, "IDEMPSTATE", "WaitPID -> Assigned");
        advance(CURRENT_FOR).await;
        context.error(KafkaError::Global(RDKafkaErrorCode::Authentication), "Authentication failed");
        let refused = || context.reports.refused().map(|failure| (failure.reason, failure.kind));
        assert_eq!(refused(), Some((AUTHENTICATION.word, FailureKind::Session)), "Kafka may be available");
        context.error(KafkaError::Global(RDKafkaErrorCode::AllBrokersDown), DOWN);
        assert_eq!(refused(), Some((AUTHENTICATION.word, FailureKind::Cluster)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_refusal_is_not_why_all_brokers_are_down() {
        let context = Context::default();
        context.error(KafkaError::Global(RDKafkaErrorCode::SSL), "SSL handshake failed");
        advance(CAUSE_WITHIN + Duration::from_millis(1)).await;
        context.error(KafkaError::Global(RDKafkaErrorCode::AllBrokersDown), DOWN);
        assert!(!context.reports.has_failed());
    }

    #[test]
    fn a_connection_that_is_lost_before_the_login_is_not_a_refused_login() {
        for lost in ["Local: Broker transport failure", "Local: Timed out", "Local: Timed out in queue"] {
            let text = format!(
                "sasl_ssl://k:9093/1: SASL SCRAM-SHA-512 mechanism handshake failed: {lost}: broker's supported \
                 mechanisms: (n/a)"
            );
            assert_eq!(*reason_of(RDKafkaErrorCode::Authentication, &text), CONNECTION_LOST);
            let context = Context::default();
            context.error(KafkaError::Global(RDKafkaErrorCode::Authentication), &text);
            assert!(context.reports.refused_by_broker().is_none(), "{lost}");
            assert_eq!(context.reports.last_error(), Some(text));
        }
        let text = "SASL PLAIN mechanism handshake failed: Broker: Unsupported SASL mechanism: broker's supported \
                    mechanisms: OAUTHBEARER";
        assert_eq!(*reason_of(RDKafkaErrorCode::Authentication, text), AUTHENTICATION);
    }

    #[tokio::test(start_paused = true)]
    async fn brokers_down_does_not_replace_its_cause() {
        let reports = Reports::default();
        reports.note_error("connection refused");
        advance(CAUSE_WITHIN).await;
        reports.note_brokers_down(DOWN);
        assert_eq!(reports.last_error().as_deref(), Some("connection refused"));
        advance(Duration::from_millis(1)).await;
        reports.note_brokers_down(DOWN);
        assert_eq!(reports.last_error().as_deref(), Some(DOWN), "the older error is not its cause");
        reports.note_error("connection timed out");
        assert_eq!(reports.last_error().as_deref(), Some("connection timed out"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_error_is_not_recent() {
        let (reports, patience) = (Reports::default(), Duration::from_secs(45));
        assert_eq!(reports.recent_error(patience), None);
        reports.note_error("connection refused");
        advance(patience).await;
        assert_eq!(reports.recent_error(patience).as_deref(), Some("connection refused"));
        advance(Duration::from_millis(1)).await;
        assert_eq!(reports.recent_error(patience), None);
        assert!(reports.last_error().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeated_line_is_logged_every_ten_minutes() {
        let critical_logs = CriticalLogs::default();
        assert_eq!(critical_logs.suppressed("THREAD"), Some(0));
        for _ in 1..600 {
            advance(Duration::from_secs(1)).await;
            assert_eq!(critical_logs.suppressed("THREAD"), None);
        }
        assert_eq!(critical_logs.suppressed("INIT"), Some(0), "another kind");
        advance(Duration::from_secs(1)).await;
        assert_eq!(critical_logs.suppressed("THREAD"), Some(599));
    }

    /// The report of a producer with one broker after this many requests.
    fn report(name: &str, broker: i32, requests: u64) -> String {
        let broker = json!({
            "nodeid": broker, "outbuf_cnt": 1, "waitresp_cnt": 2, "tx": requests, "txbytes": 10, "txerrs": 1,
            "txretries": 3, "req_timeouts": 0, "rxbytes": 20, "rxerrs": 1, "connects": 1, "disconnects": 0,
            "rtt": {"min": 1, "sum": 5_000_000, "cnt": 10, "p99": 750_000}
        });
        let topics = json!({"t": {"partitions": {}}});
        let brokers = json!({name: broker});
        json!({"name": "x", "msg_cnt": 7, "msg_size": 700, "topics": topics, "brokers": brokers, "tx": 5})
            .to_string()
    }

    #[test]
    fn counters_continue_when_a_producer_is_replaced() {
        let stats = Arc::new(Stats::new());
        let client = &stats;
        let statistics = Arc::new(Statistics::new(Arc::clone(&stats)));
        let first = statistics.watch();
        first.update(report("kafka:9092/bootstrap", -1, 100).as_bytes());
        first.update(report("kafka:9092/1", 1, 150).as_bytes());
        assert_eq!(client.kafka_requests.get(), 150, "the same broker with another name");
        assert_eq!(
            (
                client.kafka_request_errors.get(),
                client.kafka_request_retries.get(),
                client.kafka_received_bytes.get()
            ),
            (2, 3, 20)
        );
        let second = statistics.watch();
        second.update(report("kafka:9092/1", 1, 5).as_bytes());
        assert_eq!((client.kafka_queued.get(), client.kafka_in_flight.get()), (14, 4), "of both");
        drop(first);
        assert_eq!(
            (client.kafka_queued.get(), client.kafka_in_flight.get()),
            (7, 2),
            "of the one that is left"
        );
        second.update(report("kafka:9092/1", 1, 30).as_bytes());
        assert_eq!(client.kafka_requests.get(), 180);
        assert_eq!((client.kafka_responses.get(), client.kafka_round_trip_seconds.get()), (40, 20.0));
        let seconds = |broker| {
            let labels = vec![("broker", client.brokers.value(broker).to_owned())];
            client.kafka_broker_seconds.collected().get(&labels).map(|gauge| gauge.get())
        };
        assert_eq!(seconds("1"), Some(0.75));
        assert_eq!(seconds("-1"), None, "a broker without a number is not shown");
        second.update(report("kafka:9092/1", 1, 30).replace("\"cnt\":10", "\"cnt\":0").as_bytes());
        assert_eq!(seconds("1"), None, "it has not responded since the last report");
        drop(second);
        assert_eq!((client.kafka_queued.get(), seconds("1")), (0, None));
        assert_eq!(client.kafka_requests.get(), 180);
    }

    #[test]
    fn counters_do_not_decrease_when_a_broker_is_gone() {
        let stats = Arc::new(Stats::new());
        let producer = Arc::new(Statistics::new(Arc::clone(&stats))).watch();
        for requests in [100, 40, 50] {
            producer.update(report("kafka:9092/1", 1, requests).as_bytes());
        }
        assert_eq!(stats.kafka_requests.get(), 110);
        producer.update(b"{}");
        assert_eq!(stats.kafka_requests.get(), 110);
    }
}
