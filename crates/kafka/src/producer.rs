//! One idempotent producer, and the thread that polls it.
//!
//! The library's `ThreadedProducer` polls in steps of 100 ms and spins during the last part of a millisecond of each step,
//! because librdkafka rounds timeouts down to whole milliseconds. Three idle producers cost 1.9% of a core that way. A step
//! slightly longer than a whole number of milliseconds avoids it.

use crate::client::METADATA_TIMEOUT;
use crate::elsewhere;
use crate::errors::{blocking, failure, reason};
use crate::headers::HeaderTemplate;
use crate::limits::{BATCH_BYTES_LEAST, TopicLimits};
use crate::record;
use crate::reports::{Context, Reports};
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::metadata::{Metadata, MetadataBroker, MetadataTopic};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, PurgeConfig};
use relay::failure::{FailureKind, KafkaFailure};
use relay::outbox::Event;
use relay::publisher::{DeliveryReport, NotSent, Producer};
use relay::reason::{NO_ANSWER, SILENT_CONNECTION, SMALLER_BATCHES, TAKEN_BACK};
use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tokio::time::timeout;

/// How long the brokers may take to answer the prober.
const PROBE_TIMEOUT: Duration = Duration::from_millis(1_500);

/// librdkafka remembers each missing topic for as long as a producer exists, and asks for all of them every second, in
/// quadratic time. A producer that has looked up so many is replaced.
const MISSING_MAX: usize = 256;

/// How many times, and how often, requests in flight are taken back before the queue is.
const TAKE_BACK_ATTEMPTS: usize = 10;
const TAKE_BACK_EVERY: Duration = Duration::from_millis(5);

/// What the producers of a cluster share.
pub(crate) struct Shared {
    pub limits: TopicLimits,
    pub headers: Vec<HeaderTemplate>,
    /// The topic that was looked up last.
    pub topic: RefCell<Option<String>>,
}

/// One idempotent producer with its own polling thread.
pub struct KafkaProducer {
    client: Arc<BaseProducer<Context>>,
    /// Dropped after this handle of the client.
    _thread: PollingThread,
    shared: Rc<Shared>,
    /// The missing topics that this producer has looked up.
    missing: RefCell<HashSet<String>>,
}

impl KafkaProducer {
    pub(crate) fn new(
        (client, _thread): (Arc<BaseProducer<Context>>, PollingThread),
        shared: Rc<Shared>,
    ) -> KafkaProducer {
        KafkaProducer { client, _thread, shared, missing: RefCell::default() }
    }

    /// The client, for use on another thread.
    pub(crate) fn client(&self) -> Arc<BaseProducer<Context>> {
        Arc::clone(&self.client)
    }

    pub(crate) fn reports(&self) -> &Reports {
        &self.client.context().reports
    }

    pub(crate) fn is_sound(&self) -> bool {
        !self.reports().has_failed() && !self.reports().is_fatal()
    }

    /// Whether a refused row is all that has failed, and its report has arrived.
    pub(crate) fn may_continue(&self) -> bool {
        let reports = self.reports();
        reports.in_flight() == 0 && !reports.is_fatal() && reports.refused().is_none()
    }

    /// Why the cluster or the client accepts no more records from this producer. The client reports every fatal error with the
    /// same code, so this asks for the original one.
    pub(crate) fn cause(&self) -> Option<KafkaFailure> {
        let fatal = || {
            let (code, error) = self.client.client().fatal_error()?;
            Some(reason(code).failure(error))
        };
        self.reports().refused().or_else(fatal)
    }

    fn is_fatal(&self) -> bool {
        self.client.client().fatal_error().is_some()
    }

    pub(crate) async fn metadata(&self, topic: &str, within: Duration) -> Result<Metadata, KafkaFailure> {
        let (client, name) = (self.client(), topic.to_owned());
        let fetch = move || client.client().fetch_metadata(Some(&name), within);
        blocking(&format!("looking up topic {topic}"), fetch).await
    }

    /// The current leader of each partition, and any broker of the cluster.
    async fn find(
        &self,
        topic: &str,
        within: Duration,
    ) -> Result<(Vec<Option<i32>>, Option<i32>), KafkaFailure> {
        let metadata = self.metadata(topic, within).await?;
        let found = existing(&metadata, topic).inspect_err(|failure| {
            if failure.kind == FailureKind::Topic {
                self.missing.borrow_mut().insert(topic.to_owned());
            }
        })?;
        let mut leaders = vec![None; found.partitions().len()];
        for partition in found.partitions() {
            if let Some(leader) = leaders.get_mut(partition.id() as usize) {
                *leader = Some(partition.leader()).filter(|leader| *leader >= 0);
            }
        }
        Ok((leaders, metadata.brokers().first().map(MetadataBroker::id)))
    }
}

pub(crate) fn existing<'m>(metadata: &'m Metadata, topic: &str) -> Result<&'m MetadataTopic, KafkaFailure> {
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let error = found.and_then(MetadataTopic::error);
    if let Some(found) = found.filter(|found| error.is_none() && !found.partitions().is_empty()) {
        return Ok(found);
    }
    let code = error.map_or(RDKafkaErrorCode::UnknownTopicOrPartition, RDKafkaErrorCode::from);
    Err(reason(code).failure(format!("topic {topic}: {code}")))
}

impl Producer for KafkaProducer {
    async fn lookup(&self, topic: &str) -> Result<u32, KafkaFailure> {
        let found = self.find(topic, METADATA_TIMEOUT).await;
        let (leaders, broker) =
            found.map_err(|failure| self.cause().unwrap_or_else(|| connection_silent(failure)))?;
        self.shared.topic.replace(Some(topic.to_owned()));
        let limit = self.shared.limits.of(topic, broker).await;
        if limit.max(BATCH_BYTES_LEAST) < self.client.context().request_bytes {
            // The next session sends smaller requests. Otherwise a row could be refused for the size of the whole request.
            let error = format!(
                "topic {topic} accepts requests of at most {limit} bytes; the next producer sends smaller ones"
            );
            return Err(SMALLER_BATCHES.failure(error));
        }
        Ok(leaders.len() as u32)
    }

    async fn list_topics(&self) -> Option<HashSet<String>> {
        let client = self.client();
        let list = move || client.client().fetch_metadata(None, METADATA_TIMEOUT);
        let listed = blocking("listing the topics", list).await.ok()?;
        Some(listed.topics().iter().map(|topic| topic.name().to_owned()).collect())
    }

    async fn is_cut_off(&self) -> bool {
        let reports = self.reports();
        if reports.has_failed() || reports.is_fatal() {
            return true;
        }
        if !reports.were_all_down() {
            return false;
        }
        let (client, topic) = (self.client(), self.shared.topic.borrow().clone());
        let fetch = move || client.client().fetch_metadata(topic.as_deref(), METADATA_TIMEOUT);
        let answer = blocking("checking an idle producer", fetch).await;
        if answer.is_ok() {
            reports.answered();
        }
        answer.is_err()
    }

    fn is_worn(&self) -> bool {
        self.missing.borrow().len() > MISSING_MAX
    }

    async fn leaders(&self, topic: &str) -> Result<Vec<Option<i32>>, KafkaFailure> {
        match self.find(topic, PROBE_TIMEOUT).await {
            Ok((leaders, _)) => Ok(leaders),
            Err(failure) => Err(self.reports().refused().unwrap_or(failure)),
        }
    }

    // ListOffsets is answered by the leader itself, and permission to write includes permission for it.
    async fn reach_leader(&self, topic: &str, partition: u32) -> Result<(), KafkaFailure> {
        let (client, name) = (self.client(), topic.to_owned());
        let list = move || client.client().fetch_watermarks(&name, partition as i32, PROBE_TIMEOUT);
        let what = format!("querying the leader of partition {partition} of topic {topic}");
        blocking(&what, list).await.map(drop)
    }

    fn send<E: Event>(&mut self, index: u32, topic: &str, partition: u32, event: &E) -> Result<(), NotSent> {
        let bytes_max = self.shared.limits.record_bytes_max;
        let record::Record { key, value, headers } =
            record::record(event, &self.shared.headers, bytes_max).map_err(NotSent::Row)?;
        let mut record = BaseRecord::<[u8], [u8], usize>::with_opaque_to(topic, index as usize)
            .partition(partition as i32)
            .key(key)
            .headers(headers);
        record.payload = value;
        self.reports().expect();
        let Err((error, _)) = self.client.send(record) else { return Ok(()) };
        self.reports().withdraw();
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageSizeTooLarge) {
            let parts = [value, Some(key), Some(event.event_type()), event.headers()];
            let bytes: usize = parts.into_iter().flatten().map(<[u8]>::len).sum();
            return Err(NotSent::Row(record::too_large(bytes as i64, bytes_max)));
        }
        let refused = || failure("passing a record to the producer", &error);
        Err(NotSent::Session(self.cause().unwrap_or_else(refused)))
    }

    fn has_failed(&self) -> bool {
        self.reports().has_failed()
    }

    fn fatal_error(&self) -> Option<KafkaFailure> {
        self.reports().refused()
    }

    fn last_error(&self, max_age: Duration) -> Option<String> {
        self.reports().recent_error(max_age)
    }

    fn take_reports(&mut self, reports: &mut Vec<DeliveryReport>) {
        let from = reports.len();
        self.reports().take(reports);
        // A fatal error purges the queue. The purged records failed for the same cause.
        let taken_back = |report: &&mut DeliveryReport| {
            report.outcome.as_ref().is_err_and(|failure| failure.reason == TAKEN_BACK.word)
        };
        let mut taken_back = reports[from..].iter_mut().filter(taken_back).peekable();
        if taken_back.peek().is_some()
            && let Some(cause) = self.cause()
        {
            taken_back.for_each(|report| report.outcome = Err(cause.clone()));
        }
    }

    async fn wait_until_quiet(&mut self, any: bool) {
        self.reports().wait(any, |reports| reports.in_flight() == 0 || reports.has_failed()).await;
    }

    // A request that is refused for a moment returns to the queue, while later ones are in flight. If the queue were purged
    // then, librdkafka would send the later ones again under a new epoch, in which nothing has to precede them. After a fatal
    // error it sends nothing again, and reports of records in flight are still useful. A purge of a request in flight is such
    // an error, because of the gapless guarantee. `rd_kafka_purge` empties queues before it reaches the requests, so these
    // come first, until none is left.
    async fn withdraw(&mut self) {
        let purge = || PurgeConfig::default().non_blocking();
        for _ in 0..TAKE_BACK_ATTEMPTS {
            if self.is_fatal() || self.reports().in_flight() == 0 {
                break;
            }
            self.client.purge(purge().inflight());
            let done = |reports: &Reports| reports.is_fatal() || reports.in_flight() == 0;
            _ = timeout(TAKE_BACK_EVERY, self.reports().wait(false, done)).await;
        }
        self.client.purge(if self.is_fatal() { purge().queue() } else { purge().queue().inflight() });
    }

    async fn all_reported(&mut self) {
        self.reports().wait(false, |reports| reports.in_flight() == 0).await;
    }
}

/// Why a record was not passed to the client.
pub(crate) fn not_sent(refusal: NotSent) -> KafkaFailure {
    match refusal {
        NotSent::Session(failure) => failure,
        NotSent::Row(rejection) => rejection.into(),
    }
}

/// Without a response, only the connection of this producer may be dead. If all of Kafka is, the next session finds out.
fn connection_silent(failure: KafkaFailure) -> KafkaFailure {
    if failure.reason == NO_ANSWER.word { SILENT_CONNECTION.failure(failure.error) } else { failure }
}

/// The maximum time that the thread needs to notice the end of the producer. Events are processed at once.
const STEP: Duration = Duration::from_micros(200_050);

/// Waits for the end of the polling thread when it is dropped, on a runtime without blocking it.
pub(crate) struct PollingThread(Option<JoinHandle<()>>);

/// Creates a client, which connects in the background, and its polling thread. That thread also closes the client, because
/// closing waits for librdkafka's threads, one of which may be resolving a name.
pub(crate) fn start(
    config: &ClientConfig,
    context: Context,
) -> KafkaResult<(Arc<BaseProducer<Context>>, PollingThread)> {
    let client = Arc::new(BaseProducer::from_config_and_context(config, context)?);
    _ = client.context().reports.confirmation.client.set(Arc::downgrade(&client));
    let polled = Arc::clone(&client);
    let thread = Builder::new().name("producer polling".to_owned()).spawn(move || {
        // Until nothing else uses the client.
        while Arc::strong_count(&polled) > 1 {
            polled.poll(STEP);
        }
    });
    let thread = thread.map_err(|error| {
        KafkaError::ClientCreation(format!("cannot start the polling thread of the Kafka producer: {error}"))
    })?;
    Ok((client, PollingThread(Some(thread))))
}

impl Drop for PollingThread {
    fn drop(&mut self) {
        let thread = self.0.take();
        elsewhere(move || drop(thread.map(JoinHandle::join)));
    }
}
