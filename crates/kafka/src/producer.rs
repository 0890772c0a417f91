//! One idempotent producer, and the thread that polls it.
//!
//! The library's `ThreadedProducer` polls in steps of 100 ms and spins during the last part of a millisecond of each step,
//! because librdkafka rounds timeouts down to whole milliseconds. Three idle producers cost 1.9% of a core that way. A step
//! slightly longer than a whole number of milliseconds avoids it.

use crate::errors::failure;
use crate::headers::HeaderTemplate;
use crate::limits::TopicLimits;
use crate::record;
use crate::reports::{Context, Reports};
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::metadata::{Metadata, MetadataBroker};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, PurgeConfig};
use relay::failure::{FailureKind, KafkaFailure};
use relay::outbox::Event;
use relay::publisher::{DeliveryReport, NotSent, Producer};
use relay::reason::{NO_ANSWER, SILENT_CONNECTION, SMALLER_BATCHES, TAKEN_BACK};
use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tokio::time::timeout;

pub(crate) const METADATA_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the brokers may take to answer the prober.
const PROBE_TIMEOUT: Duration = Duration::from_millis(1_500);

/// librdkafka remembers each missing topic for as long as a producer exists, and asks for all of them every second, in
/// quadratic time. A producer that has looked up so many is replaced.
const MISSING_MAX: usize = 256;

/// How many times, and how often, requests in flight are taken back before the queue is.
const TAKE_BACK_ATTEMPTS: usize = 10;
const TAKE_BACK_EVERY: Duration = Duration::from_millis(5);

/// One idempotent producer with its own polling thread.
pub struct KafkaProducer {
    producer: PolledProducer,
    reports: Arc<Reports>,
    limits: Rc<TopicLimits>,
    batch_bytes: usize,
    headers: Rc<[HeaderTemplate]>,
    /// The topic that any producer of the cluster looked up last.
    topic: Rc<RefCell<Option<String>>>,
    /// The missing topics that this producer has looked up.
    missing: RefCell<HashSet<String>>,
}

impl KafkaProducer {
    pub(crate) fn new(
        producer: PolledProducer,
        reports: Arc<Reports>,
        limits: Rc<TopicLimits>,
        batch_bytes: usize,
        headers: Rc<[HeaderTemplate]>,
        topic: Rc<RefCell<Option<String>>>,
    ) -> KafkaProducer {
        let missing = RefCell::default();
        KafkaProducer { producer, reports, limits, batch_bytes, headers, topic, missing }
    }

    #[cfg(test)]
    pub(crate) fn is_identified(&self) -> bool {
        self.reports.is_identified()
    }

    pub(crate) fn is_sound(&self) -> bool {
        !self.reports.has_failed() && !self.reports.is_fatal()
    }

    /// Whether a refused row is all that has failed, and its report has arrived.
    pub(crate) fn may_continue(&self) -> bool {
        self.reports.in_flight() == 0 && !self.reports.is_fatal() && self.reports.refused().is_none()
    }

    fn cause(&self) -> Option<KafkaFailure> {
        cause(&self.producer, &self.reports)
    }

    fn is_fatal(&self) -> bool {
        self.producer.client().fatal_error().is_some()
    }

    async fn metadata(&self, topic: &str, within: Duration) -> Result<TopicMetadata, KafkaFailure> {
        let found = metadata(&self.producer, topic, within).await;
        if found.as_ref().is_err_and(|failure| failure.kind == FailureKind::Topic) {
            self.missing.borrow_mut().insert(topic.to_owned());
        }
        found
    }
}

/// Why the cluster or the client accepts no more records from this producer. The client reports every fatal error with the
/// same code, so this asks for the original one.
pub(crate) fn cause(producer: &PolledProducer, reports: &Reports) -> Option<KafkaFailure> {
    let fatal = || {
        let (code, error) = producer.client().fatal_error()?;
        Some(crate::errors::reason(code).failure(error))
    };
    reports.refused().or_else(fatal)
}

impl Producer for KafkaProducer {
    async fn lookup(&self, topic: &str) -> Result<u32, KafkaFailure> {
        let found = self
            .metadata(topic, METADATA_TIMEOUT)
            .await
            .map_err(|failure| self.cause().unwrap_or_else(|| connection_silent(failure)))?;
        self.topic.replace(Some(topic.to_owned()));
        let limit = self.limits.of(topic, found.broker).await;
        if limit.max(crate::cluster::BATCH_BYTES_LEAST) < self.batch_bytes {
            // The next session sends smaller requests. Otherwise a row could be refused for the size of the whole request.
            let error = format!(
                "topic {topic} accepts requests of at most {limit} bytes; the next producer sends smaller ones"
            );
            return Err(SMALLER_BATCHES.failure(error));
        }
        Ok(found.leaders.len() as u32)
    }

    async fn list_topics(&self) -> Option<HashSet<String>> {
        let client = self.producer.share();
        let list = move || {
            let listed = client.client().fetch_metadata(None, METADATA_TIMEOUT)?;
            Ok::<_, KafkaError>(listed.topics().iter().map(|topic| topic.name().to_owned()).collect())
        };
        tokio::task::spawn_blocking(list).await.ok()?.ok()
    }

    fn is_worn(&self) -> bool {
        self.missing.borrow().len() > MISSING_MAX
    }

    async fn leaders(&self, topic: &str) -> Result<Vec<Option<i32>>, KafkaFailure> {
        match self.metadata(topic, PROBE_TIMEOUT).await {
            Ok(found) => Ok(found.leaders),
            Err(failure) => Err(self.reports.refused().unwrap_or(failure)),
        }
    }

    // ListOffsets is answered by the leader itself, and permission to write includes permission for it.
    async fn reach_leader(&self, topic: &str, partition: u32) -> Result<(), KafkaFailure> {
        let (client, name) = (self.producer.share(), topic.to_owned());
        let list =
            move || client.client().fetch_watermarks(&name, partition as i32, PROBE_TIMEOUT).map(|_| ());
        match tokio::task::spawn_blocking(list).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                let what = format!("querying the leader of partition {partition} of topic {topic}");
                Err(failure(&what, &error))
            }
            Err(error) => Err(KafkaFailure::unknown(error.to_string())),
        }
    }

    fn send<E: Event>(&mut self, index: u32, topic: &str, partition: u32, event: &E) -> Result<(), NotSent> {
        let record::Record { key, value, headers } =
            record::record(event, &self.headers, self.limits.record_bytes_max).map_err(NotSent::Row)?;
        let mut record = BaseRecord::<[u8], [u8], usize>::with_opaque_to(topic, index as usize)
            .partition(partition as i32)
            .key(key)
            .headers(headers);
        record.payload = value;
        self.reports.expect();
        let Err((error, _)) = self.producer.send(record) else { return Ok(()) };
        self.reports.withdraw();
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageSizeTooLarge) {
            let parts = [value, Some(key), Some(event.event_type()), event.headers()];
            let bytes: usize = parts.into_iter().flatten().map(<[u8]>::len).sum();
            return Err(NotSent::Row(record::too_large(bytes as i64, self.limits.record_bytes_max)));
        }
        let refused = || failure("passing a record to the producer", &error);
        Err(NotSent::Session(self.cause().unwrap_or_else(refused)))
    }

    fn has_failed(&self) -> bool {
        self.reports.has_failed()
    }

    fn fatal_error(&self) -> Option<KafkaFailure> {
        self.reports.refused()
    }

    fn last_error(&self, max_age: Duration) -> Option<String> {
        self.reports.recent_error(max_age)
    }

    fn drain(&mut self, reports: &mut Vec<DeliveryReport>) {
        let from = reports.len();
        self.reports.take(reports);
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
        self.reports.wait(any, |reports| reports.in_flight() == 0 || reports.has_failed()).await;
    }

    // A request that is refused for a moment returns to the queue, while later ones are in flight. If the queue were purged
    // then, librdkafka would send the later ones again under a new epoch, in which nothing has to precede them. After a fatal
    // error it sends nothing again, and reports of records in flight are still useful. A purge of a request in flight is such
    // an error, because of the gapless guarantee. `rd_kafka_purge` empties queues before it reaches the requests, so these
    // come first, until none is left.
    async fn withdraw(&mut self) {
        let purge = || PurgeConfig::default().non_blocking();
        for _ in 0..TAKE_BACK_ATTEMPTS {
            if self.is_fatal() || self.reports.in_flight() == 0 {
                break;
            }
            self.producer.purge(purge().inflight());
            let done = |reports: &Reports| reports.is_fatal() || reports.in_flight() == 0;
            _ = timeout(TAKE_BACK_EVERY, self.reports.wait(false, done)).await;
        }
        self.producer.purge(if self.is_fatal() { purge().queue() } else { purge().queue().inflight() });
    }

    async fn drained(&mut self) {
        self.reports.wait(false, |reports| reports.in_flight() == 0).await;
    }

    fn abandon(self) {
        drop(self);
    }
}

/// Without a response, only the connection of this producer may be dead. If all of Kafka is, the next session finds out.
fn connection_silent(failure: KafkaFailure) -> KafkaFailure {
    if failure.reason == NO_ANSWER.word { SILENT_CONNECTION.failure(failure.error) } else { failure }
}

/// A topic that exists.
struct TopicMetadata {
    /// One per partition.
    leaders: Vec<Option<i32>>,
    /// Any broker of the cluster.
    broker: Option<i32>,
}

async fn metadata(
    producer: &PolledProducer,
    topic: &str,
    within: Duration,
) -> Result<TopicMetadata, KafkaFailure> {
    let (client, name) = (producer.share(), topic.to_owned());
    let fetched =
        tokio::task::spawn_blocking(move || client.client().fetch_metadata(Some(&name), within)).await;
    let what = format!("looking up topic {topic}");
    match fetched {
        Ok(Ok(metadata)) => {
            let broker = metadata.brokers().first().map(MetadataBroker::id);
            leaders(&metadata, topic).map(|leaders| TopicMetadata { leaders, broker })
        }
        Ok(Err(error)) => Err(failure(&what, &error)),
        Err(error) => Err(KafkaFailure::unknown(format!("{what}: {error}"))),
    }
}

fn leaders(metadata: &Metadata, topic: &str) -> Result<Vec<Option<i32>>, KafkaFailure> {
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let failed =
        |code: RDKafkaErrorCode| crate::errors::reason(code).failure(format!("topic {topic}: {code}"));
    match found {
        None => Err(failed(RDKafkaErrorCode::UnknownTopicOrPartition)),
        Some(found) => match found.error() {
            Some(code) => Err(failed(code.into())),
            None if found.partitions().is_empty() => Err(failed(RDKafkaErrorCode::UnknownTopicOrPartition)),
            None => {
                let mut leaders = vec![None; found.partitions().len()];
                for partition in found.partitions() {
                    if let Some(leader) = leaders.get_mut(partition.id() as usize) {
                        *leader = Some(partition.leader()).filter(|leader| *leader >= 0);
                    }
                }
                Ok(leaders)
            }
        },
    }
}

/// The maximum time that the thread needs to notice the end of the producer. Events are processed at once.
const STEP: Duration = Duration::from_micros(200_050);

/// A producer with its own polling thread. Dropping it waits for that thread and for librdkafka's threads, one of which may
/// be resolving a name, so on a runtime this happens on another thread.
pub(crate) struct PolledProducer {
    inner: Option<Inner>,
}

struct Inner {
    producer: Arc<BaseProducer<Context>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl PolledProducer {
    /// Creates a producer, which connects in the background.
    ///
    /// # Errors
    ///
    /// If librdkafka refuses the properties, or a thread cannot be started.
    pub(crate) fn new(config: &ClientConfig, context: Context) -> KafkaResult<PolledProducer> {
        let producer = Arc::new(BaseProducer::from_config_and_context(config, context)?);
        let stop = Arc::new(AtomicBool::new(false));
        let (polled, stopped) = (Arc::clone(&producer), Arc::clone(&stop));
        let thread = Builder::new().name("producer polling".to_owned()).spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                polled.poll(STEP);
            }
        });
        let thread = thread.map_err(|error| {
            KafkaError::ClientCreation(format!(
                "cannot start the polling thread of the Kafka producer: {error}. Check the \
                 thread limit of the host"
            ))
        })?;
        Ok(PolledProducer { inner: Some(Inner { producer, stop, thread }) })
    }

    /// The producer, for use on another thread.
    pub(crate) fn share(&self) -> Arc<BaseProducer<Context>> {
        Arc::clone(&self.inner().producer)
    }

    fn inner(&self) -> &Inner {
        self.inner.as_ref().unwrap_or_else(|| unreachable!("only drop takes it"))
    }
}

impl Deref for PolledProducer {
    type Target = BaseProducer<Context>;

    fn deref(&self) -> &Self::Target {
        &self.inner().producer
    }
}

impl Drop for PolledProducer {
    fn drop(&mut self) {
        let Some(Inner { producer, stop, thread }) = self.inner.take() else { return };
        stop.store(true, Ordering::Release);
        let end = move || {
            let _ = thread.join();
            drop(producer);
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => _ = runtime.spawn_blocking(end),
            Err(_) => end(),
        }
    }
}
