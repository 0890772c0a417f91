//! The callbacks of librdkafka: delivery reports, errors and log lines.
//!
//! Critical log lines, for example that a thread cannot start, are repeated by each producer at each attempt, and nothing
//! reports when their cause is gone. So each kind is logged at most every ten minutes.

use crate::errors::failure;
use crate::limits::LearnedLimits;
use crate::statistics::Watched;
use crate::tokens::{Tokens, issued};
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::producer::{DeliveryResult, ProducerContext};
use relay::failure::{FailureKind, KafkaFailure};
use relay::health::availability::Episodes;
use relay::publisher::DeliveryReport;
use relay::reason::{
    AUTHENTICATION, BROKERS_DOWN, NO_OFFSET, OTHER_CLUSTER, RECORD_TOO_LARGE, Reason, SMALLER_BATCHES, TLS,
    TOKEN,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The error that all brokers are down follows its cause within this time.
const CAUSE_WITHIN: Duration = Duration::from_secs(10);

/// The reports of one producer. Its polling thread writes them and wakes the worker once per batch.
#[derive(Default)]
pub(crate) struct Reports {
    list: Mutex<Vec<DeliveryReport>>,
    in_flight: AtomicUsize,
    failed: AtomicBool,
    /// The producer has its producer ID.
    identified: AtomicBool,
    /// The client had a fatal error and accepts no more records.
    fatal: AtomicBool,
    /// The worker waits for any report, not only for the last one.
    any: AtomicBool,
    /// The cluster refuses the producer altogether. Delivery reports do not contain this.
    refused: Mutex<Option<KafkaFailure>>,
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
        self.identified.load(Ordering::Acquire)
    }

    pub(crate) fn is_fatal(&self) -> bool {
        self.fatal.load(Ordering::Acquire)
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

    /// Notes that all brokers are down, unless the previous error is its cause.
    fn note_brokers_down(&self, error: &str) {
        if self.recent_error(CAUSE_WITHIN).is_none() {
            self.note_error(error);
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

    fn report(&self, index: usize, outcome: Result<(), KafkaFailure>) {
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

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Context {
    reports: Arc<Reports>,
    critical_logs: Arc<CriticalLogs>,
    /// For SASL OAUTHBEARER.
    tokens: Option<Arc<Tokens>>,
    watched: Option<Watched>,
    learned: Arc<LearnedLimits>,
    /// The largest request of the producer.
    request_bytes: usize,
}

impl Context {
    pub(crate) fn new(
        reports: Arc<Reports>,
        critical_logs: Arc<CriticalLogs>,
        tokens: Option<Arc<Tokens>>,
        watched: Option<Watched>,
        (learned, request_bytes): (Arc<LearnedLimits>, usize),
    ) -> Context {
        Context { reports, critical_logs, tokens, watched, learned, request_bytes }
    }
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        issued(self.tokens.as_ref())
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // librdkafka reports only in its log that the producer has its ID.
        if facility == "IDEMPSTATE" && message.ends_with("-> Assigned") {
            self.reports.raise(&self.reports.identified);
        }
        // librdkafka retries by itself and reports the cause of a missing producer ID only here.
        if facility == "GETPID" && message.contains("Failed to acquire") {
            self.reports.note_error(message);
        }
        // The brokers' names lead to another cluster now. librdkafka would publish to it.
        if facility == "CLUSTERID" && matches!(level, RDKafkaLogLevel::Warning) {
            self.reports.refuse(OTHER_CLUSTER.failure(message));
        }
        // The relay logs state changes once, while librdkafka repeats them for each broker and attempt.
        match level {
            // The relay replaces the producer and reports the failure itself.
            _ if facility == "FATAL" => tracing::debug!(target: "librdkafka", "{facility}: {message}"),
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
                self.critical_logs.log(facility, message);
            }
            _ => tracing::debug!(target: "librdkafka", "{facility}: {message}"),
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
        } else {
            self.reports.note_error(reason);
        }
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
            self.reports.raise(&self.reports.fatal);
        }
        let Some(why) = error.rdkafka_error_code().map(|code| reason_of(code, reason)) else { return };
        if *why == AUTHENTICATION {
            self.tokens.iter().for_each(|tokens| tokens.reject());
        }
        // Brokers that are down may be back within publish_timeout, and the producer then continues by itself.
        if why.kind == FailureKind::Cluster && *why != BROKERS_DOWN {
            self.reports.refuse(why.failure(reason));
        }
    }
}

/// Distinguishes two cases that share a code with others: there is no token, and a broker refused the client's certificate.
/// The client takes the latter for a broken connection, because its side of the handshake had already succeeded.
fn reason_of(code: RDKafkaErrorCode, text: &str) -> &'static Reason {
    match code {
        RDKafkaErrorCode::Authentication if text.contains("Failed to acquire SASL OAUTHBEARER token") => {
            &TOKEN
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
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = kinds.end(|logged, episode| logged == kind && episode.age() >= LOGGED_EVERY).pop();
        kinds.begins(kind.to_owned()).then(|| before.map_or(0, |(_, before)| before.times - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[test]
    fn producer_that_meets_another_cluster_is_refused() {
        let context = Context::new(Arc::default(), Arc::default(), None, None, Default::default());
        context.log(RDKafkaLogLevel::Debug, "CLUSTERID", "ClusterId update \"\" -> \"a\"");
        assert!(!context.reports.has_failed());
        context.log(RDKafkaLogLevel::Warning, "CLUSTERID", "Broker b:9092 reports different ClusterId");
        assert!(context.reports.has_failed());
        assert_eq!(context.reports.refused().unwrap().reason, OTHER_CLUSTER.word);
    }

    const DOWN: &str = "1/1 brokers are down";

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
}
