//! The cluster: opens producers for sessions, and short-lived ones to judge rows and to probe.

use super::client::{self, Address, Comparison, client_config, limit_silence, number};
use super::handshake;
use super::limits::TopicLimits;
use super::producer::{KafkaProducer, METADATA_TIMEOUT, PolledProducer, cause};
use super::reports::{Context, CriticalLogs, Reports};
use super::statistics::Statistics;
use super::tokens::Tokens;
use crate::headers::HeaderTemplate;
use crate::options::{Kafka, Property};
use rdkafka::ClientConfig;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::metadata::Metadata;
use rdkafka::producer::{BaseProducer, Producer as _};
use relay::Limits;
use relay::failure::{FailureKind, KafkaFailure};
use relay::health::stats::Stats;
use relay::outbox::Event;
use relay::publisher::{DeliveryReport, Judged, NotSent, Producer, Publisher};
use relay::reason::{BROKERS_DOWN, CONFIGURATION, NO_ANSWER, RECORD_TOO_LARGE, TOKEN};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// librdkafka's own default of `message.max.bytes`.
const RECORD_BYTES_MAX: usize = 1_000_000;
/// The size of a producer batch in addition to its records.
const BATCH_OVERHEAD: usize = 1_024;
/// The smallest producer batch, even if a topic's limit is lower.
pub(super) const BATCH_BYTES_LEAST: usize = 4_096;
/// How often a producer reports its statistics. Their size grows with the number of partitions; 1,000 take some
/// milliseconds.
const STATISTICS_INTERVAL: &str = "statistics.interval.ms";
const STATISTICS_EVERY_MS: &str = "10000";
/// How long the producer of a probe is kept for the next session. Afterwards, its connections may be dead.
const SPARE_FOR: Duration = Duration::from_secs(10);
/// How long to wait for the reports of judged rows.
const JUDGE_TIMEOUT: Duration = Duration::from_secs(15);
/// How long the brokers may take to assign a producer ID once they answer.
const IDENTIFIED_WITHIN: Duration = Duration::from_secs(5);
/// How long to wait for the producer ID after each metadata response.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// A Kafka cluster.
pub struct KafkaCluster {
    settings: RefCell<Kafka>,
    /// With SASL OAUTHBEARER.
    tokens: Option<Arc<Tokens>>,
    batch_rows: Cell<usize>,
    batch_bytes: Cell<usize>,
    publish_timeout: Cell<Duration>,
    limits: Rc<TopicLimits>,
    headers: Rc<[HeaderTemplate]>,
    critical_logs: Arc<CriticalLogs>,
    /// The client's own metrics, if enabled.
    statistics: Option<Arc<Statistics>>,
    /// The producer of the last probe, for the next session.
    spare: RefCell<Option<(Instant, KafkaProducer)>>,
    /// The producer that judged the last single row.
    judging: RefCell<Option<(Instant, KafkaProducer)>>,
    /// Changes with every [`KafkaCluster::reconfigure`].
    generation: Cell<u64>,
    /// The topic that was looked up last.
    topic: Rc<RefCell<Option<String>>>,
    comparison: Comparison,
}

/// The largest allowed record of this configuration, in bytes.
pub fn record_bytes_max(kafka: &Kafka) -> usize {
    match kafka.properties.get("message.max.bytes") {
        Some(Property::Plain(bytes)) => bytes.parse().unwrap_or(RECORD_BYTES_MAX),
        _ => RECORD_BYTES_MAX,
    }
}

impl KafkaCluster {
    /// The cluster of this configuration. Connects to nothing yet.
    pub fn new(
        kafka: &Kafka,
        headers: &[HeaderTemplate],
        limits: &Limits,
    ) -> Result<KafkaCluster, KafkaFailure> {
        let mut cluster = KafkaCluster {
            settings: RefCell::new(kafka.clone()),
            tokens: Tokens::of(kafka)?,
            batch_rows: Cell::new(limits.batch_rows),
            batch_bytes: Cell::new(limits.batch_bytes),
            publish_timeout: Cell::new(limits.publish_timeout),
            limits: Rc::new(TopicLimits::new(None, RECORD_BYTES_MAX)),
            headers: headers.into(),
            critical_logs: Arc::default(),
            statistics: None,
            spare: RefCell::new(None),
            judging: RefCell::new(None),
            generation: Cell::new(0),
            topic: Rc::default(),
            comparison: Comparison::default(),
        };
        let config = client_config(kafka)?;
        // The client library's admin client cannot authenticate with a token.
        let asks_with = (!kafka.uses_tokens()).then_some(config);
        cluster.limits = Rc::new(TopicLimits::new(asks_with, record_bytes_max(kafka)));
        Ok(cluster)
    }

    /// Makes the producers report their statistics.
    pub fn counting_into(mut self, stats: Arc<Stats>) -> KafkaCluster {
        self.statistics = Some(Arc::new(Statistics::new(stats)));
        self
    }

    /// Compares the cluster before a producer is used.
    pub fn comparison(&self) -> &Comparison {
        &self.comparison
    }

    /// Uses these settings, and secrets that are read again, for producers opened from now on. The brokers, the plain
    /// properties and the source of tokens must not change.
    pub fn reconfigure(&self, kafka: &Kafka, limits: &Limits) {
        self.settings.replace(kafka.clone());
        self.batch_rows.set(limits.batch_rows);
        self.batch_bytes.set(limits.batch_bytes);
        self.publish_timeout.set(limits.publish_timeout);
        self.spare.replace(None);
        self.judging.replace(None);
        self.generation.set(self.generation.get() + 1);
        self.tokens.iter().for_each(|tokens| tokens.renew());
        match client_config(kafka) {
            Ok(config) => self.limits.reconfigure(config),
            // The secret file existed a moment ago. A session that cannot read it reports the failure.
            Err(failure) => tracing::debug!("{failure}"),
        }
    }

    /// The largest allowed record, in bytes.
    pub fn record_bytes_max(&self) -> usize {
        self.limits.record_bytes_max
    }

    /// Checks whether librdkafka accepts the settings: some mistakes show only in their combination. Does not connect.
    pub fn check_settings(&self) -> Result<(), KafkaFailure> {
        let (mut config, batch_bytes) = self.producer_config()?;
        config.remove("bootstrap.servers");
        match BaseProducer::from_config_and_context(&config, self.context(Arc::default(), batch_bytes)) {
            Ok::<BaseProducer<Context>, _>(_) => Ok(()),
            Err(error) => Err(unusable(&error)),
        }
    }

    /// The configuration of an idempotent producer. The settings behind the guarantees override the user's properties,
    /// which [`super::properties`] has already checked.
    fn producer_config(&self) -> Result<(ClientConfig, usize), KafkaFailure> {
        let mut config = client_config(&self.settings.borrow())?;
        for (name, value) in [("compression.type", "lz4"), ("linger.ms", "0")] {
            if config.get(name).is_none()
                && !(name == "linger.ms" && config.get("queue.buffering.max.ms").is_some())
            {
                config.set(name, value);
            }
        }
        if self.statistics.is_some() && config.get(STATISTICS_INTERVAL).is_none() {
            config.set(STATISTICS_INTERVAL, STATISTICS_EVERY_MS);
        }
        limit_silence(&mut config, self.publish_timeout.get());
        let wanted = number(&config, "batch.size").unwrap_or(RECORD_BYTES_MAX);
        let batch_bytes =
            wanted.min(self.limits.smallest().saturating_sub(BATCH_OVERHEAD)).max(BATCH_BYTES_LEAST);
        config.set("batch.size", batch_bytes.to_string());
        config.set("acks", "all");
        config.set("enable.idempotence", "true");
        config.set("enable.gapless.guarantee", "true");
        config.set("message.timeout.ms", "0");
        config.set("partitioner", "murmur2_random");
        config.set("topic.metadata.propagation.max.ms", "3000");
        // Logs a line when the producer gets its ID, a few more when it loses it, and none per record.
        let debug = config.get("debug").map_or_else(|| "eos".to_owned(), |debug| format!("{debug},eos"));
        config.set("debug", debug);
        config.set_log_level(RDKafkaLogLevel::Debug);
        // The queue holds two batches, so it is never full.
        config.set("queue.buffering.max.messages", (2 * self.batch_rows.get()).max(10_000).to_string());
        let kilobytes = (4 * (self.batch_bytes.get() + self.limits.record_bytes_max) / 1_024).max(16 * 1_024);
        config.set("queue.buffering.max.kbytes", kilobytes.min(2_097_151).to_string());
        Ok((config, batch_bytes))
    }

    /// Fetches a token first: without one, no broker answers and librdkafka does not report why.
    async fn have_token(&self) -> Result<(), KafkaFailure> {
        let Some(tokens) = self.tokens.clone() else { return Ok(()) };
        match tokio::task::spawn_blocking(move || tokens.get().map(drop)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(TOKEN.failure(error.to_string())),
            Err(error) => Err(KafkaFailure::unknown(error.to_string())),
        }
    }

    pub(super) async fn connect(&self) -> Result<(PolledProducer, Arc<Reports>, usize), KafkaFailure> {
        self.connect_with(self.producer_config()?).await
    }

    async fn connect_with(
        &self,
        (config, batch_bytes): (ClientConfig, usize),
    ) -> Result<(PolledProducer, Arc<Reports>, usize), KafkaFailure> {
        self.have_token().await?;
        let reports = Arc::new(Reports::default());
        let context = self.context(Arc::clone(&reports), batch_bytes);
        let created = tokio::task::spawn_blocking(move || PolledProducer::new(&config, context)).await;
        match created {
            Ok(Ok(producer)) => Ok((producer, reports, batch_bytes)),
            Ok(Err(error)) => Err(unusable(&error)),
            Err(error) => Err(KafkaFailure::unknown(error.to_string())),
        }
    }

    fn context(&self, reports: Arc<Reports>, batch_bytes: usize) -> Context {
        let watched = self.statistics.as_ref().map(Statistics::watch);
        let requests = (Arc::clone(&self.limits.learned), batch_bytes);
        Context::new(reports, Arc::clone(&self.critical_logs), self.tokens.clone(), watched, requests)
    }

    fn wrap(&self, producer: PolledProducer, reports: Arc<Reports>, batch_bytes: usize) -> KafkaProducer {
        let (limits, headers) = (Rc::clone(&self.limits), Rc::clone(&self.headers));
        KafkaProducer::new(producer, reports, limits, batch_bytes, headers, Rc::clone(&self.topic))
    }

    /// A producer that connects by itself, in the background, whether or not a broker answers.
    pub async fn connecting(&self) -> Result<KafkaProducer, KafkaFailure> {
        let (producer, reports, batch_bytes) = self.connect().await?;
        Ok(self.wrap(producer, reports, batch_bytes))
    }

    /// A producer to which a broker of the right cluster has answered. This needs no permission.
    async fn answering(
        &self,
        config: (ClientConfig, usize),
    ) -> Result<(PolledProducer, Arc<Reports>, usize), KafkaFailure> {
        let (producer, reports, batch_bytes) = self.connect_with(config).await?;
        let client = producer.share();
        let answered =
            tokio::task::spawn_blocking(move || client.client().fetch_cluster_id(METADATA_TIMEOUT));
        let (answered, ()) = tokio::join!(answered, self.limits.prepare());
        let Ok(Some(id)) = answered else { return Err(self.unreachable(&reports).await) };
        self.comparison.check(id).await?;
        Ok((producer, reports, batch_bytes))
    }

    /// The ID of the cluster. Fails if no broker answers.
    pub async fn id(&self) -> Result<String, KafkaFailure> {
        self.answering(self.producer_config()?).await?;
        Ok(self.comparison.answered().unwrap_or_default())
    }

    /// A producer that is connected and has its producer ID.
    ///
    /// librdkafka requests the ID when a broker answers a metadata request. The first answer comes from a bootstrap
    /// connection, which it then closes; without a second metadata request it waits for 500 ms.
    ///
    /// Also returns the addresses that the brokers advertise, if a broker has listed them.
    async fn identified(&self) -> Result<(KafkaProducer, Vec<Address>), KafkaFailure> {
        let (producer, reports, batch_bytes) = self.answering(self.producer_config()?).await?;
        let (begun, mut advertised) = (Instant::now(), Vec::new());
        loop {
            if reports.is_identified() {
                return Ok((self.wrap(producer, reports, batch_bytes), advertised));
            }
            if let Some(cause) = cause(&producer, &reports) {
                return Err(cause);
            }
            if begun.elapsed() > IDENTIFIED_WITHIN {
                let why = reports.last_error().map_or_else(String::new, |error| format!(": {error}"));
                let error =
                    format!("the brokers did not assign a producer ID within {IDENTIFIED_WITHIN:?}{why}");
                return Err(self.unusable_addresses().await.unwrap_or_else(|| NO_ANSWER.failure(error)));
            }
            // Ask for a single topic if one is known, because the answer about all topics may be large.
            let (client, topic) = (producer.share(), self.topic.borrow().clone());
            let fetch = move || client.client().fetch_metadata(topic.as_deref(), METADATA_TIMEOUT);
            match tokio::task::spawn_blocking(fetch).await {
                Ok(Ok(metadata)) => advertised = addresses(&metadata),
                Ok(Err(error)) => tracing::debug!("could not fetch metadata: {error}"),
                Err(_) => {} // the runtime ends
            }
            let done =
                |reports: &Reports| reports.is_identified() || reports.is_fatal() || reports.has_failed();
            _ = timeout(ASK_AGAIN, reports.wait(false, done)).await;
        }
    }

    /// Names the addresses that the brokers advertise and that this host cannot use.
    pub async fn unusable_addresses(&self) -> Option<KafkaFailure> {
        client::unusable(&self.bootstrap_servers(), &self.advertised().await).await
    }

    async fn advertised(&self) -> Vec<Address> {
        // Not in the match, which would keep the settings borrowed during a reload.
        let config = client_config(&self.settings.borrow());
        match config {
            Ok(config) => client::listed(config, self.tokens.clone()).await,
            Err(_) => Vec::new(),
        }
    }

    fn bootstrap_servers(&self) -> String {
        self.settings.borrow().bootstrap_servers.clone()
    }

    async fn unreachable(&self, reports: &Reports) -> KafkaFailure {
        let failure = reports.refused().unwrap_or_else(|| {
            BROKERS_DOWN.failure(format!(
                "no broker reachable at {}: {}",
                self.bootstrap_servers(),
                reports.last_error().unwrap_or_else(|| format!("no response for {METADATA_TIMEOUT:?}"))
            ))
        });
        let config = match client_config(&self.settings.borrow()) {
            Ok(config) => config,
            Err(failure) => return failure,
        };
        let error = failure.error.clone();
        let explained = tokio::task::spawn_blocking(move || handshake::explained(&error, &config)).await;
        KafkaFailure { error: explained.unwrap_or_else(|_| failure.error.clone()), ..failure }
    }
}

impl Publisher for KafkaCluster {
    type Producer = KafkaProducer;

    async fn open(&self) -> Result<KafkaProducer, KafkaFailure> {
        match self.spare.take() {
            Some((at, producer)) if at.elapsed() < SPARE_FOR && producer.is_sound() => Ok(producer),
            _ => Ok(self.identified().await?.0),
        }
    }

    async fn judge<E: Event>(&self, topic: &str, partition: u32, rows: &[&E]) -> Judged {
        // A single row can leave no gap, so its producer judges the next one too: opening a producer takes longer than judging.
        let (single, generation) = (rows.len() == 1, self.generation.get());
        let kept = single.then(|| self.judging.take()).flatten();
        let opened = match kept {
            Some((at, producer)) if at.elapsed() < SPARE_FOR => Ok(producer),
            _ if single => self.open_for_probes().await,
            _ => self.open().await,
        };
        let mut alone = match opened {
            Ok(producer) => producer,
            Err(failure) => return Judged { acknowledged: 0, failure: Some(failure) },
        };
        let (first, others) = rows.split_at(rows.len().min(1));
        let mut judged = publish(&mut alone, topic, partition, first).await;
        if judged.failure.is_none() && !others.is_empty() {
            let behind = publish(&mut alone, topic, partition, others).await;
            judged = Judged { acknowledged: first.len() + behind.acknowledged, ..behind };
        }
        let is_clear = judged.failure.as_ref().is_none_or(|failure| failure.kind == FailureKind::Row);
        if single && is_clear && alone.may_continue() && generation == self.generation.get() {
            self.judging.replace(Some((Instant::now(), alone)));
        } else {
            alone.abandon();
        }
        if judged.failure.as_ref().is_some_and(|failure| failure.reason == RECORD_TOO_LARGE.word) {
            self.limits.forget(topic);
        }
        judged
    }

    async fn probe(&self) -> Result<(), KafkaFailure> {
        let generation = self.generation.get();
        let (producer, mut advertised) = self.identified().await?;
        // The producer ID may come from a bootstrap connection, which publishes nothing.
        if advertised.is_empty() {
            advertised = self.advertised().await;
        }
        if let Some(failure) = client::all_unusable(&self.bootstrap_servers(), &advertised).await {
            return Err(failure);
        }
        // After a reload, it may have the old settings.
        if generation == self.generation.get() {
            self.spare.replace(Some((Instant::now(), producer)));
        } else {
            producer.abandon();
        }
        Ok(())
    }

    async fn open_for_probes(&self) -> Result<KafkaProducer, KafkaFailure> {
        let (mut config, batch_bytes) = self.producer_config()?;
        // With this guarantee, one refused row would end the producer and purge the rows of all other topics. One row per
        // partition cannot leave a gap.
        config.set("enable.gapless.guarantee", "false");
        let (producer, reports, batch_bytes) = self.answering((config, batch_bytes)).await?;
        Ok(self.wrap(producer, reports, batch_bytes))
    }
}

async fn publish<E: Event>(producer: &mut KafkaProducer, topic: &str, partition: u32, rows: &[&E]) -> Judged {
    let mut outcomes: Vec<Result<(), KafkaFailure>> =
        vec![Err(KafkaFailure::unknown("request timed out")); rows.len()];
    for (index, row) in rows.iter().enumerate() {
        let refused = match producer.send(index as u32, topic, partition, *row) {
            Ok(()) => continue,
            Err(NotSent::Session(failure)) => failure,
            Err(NotSent::Row(rejection)) => rejection.into(),
        };
        outcomes[index] = Err(refused);
        break;
    }
    // Rows whose reports are late keep the unknown outcome from above.
    let late = timeout(JUDGE_TIMEOUT, producer.drained()).await.is_err();
    let mut reports = Vec::new();
    producer.drain(&mut reports);
    if late {
        producer.withdraw().await;
    }
    for DeliveryReport { index, outcome } in reports {
        outcomes[index as usize] = outcome;
    }
    let acknowledged = outcomes.iter().take_while(|outcome| outcome.is_ok()).count();
    let failure = outcomes.into_iter().nth(acknowledged).and_then(Result::err);
    Judged { acknowledged, failure }
}

fn addresses(metadata: &Metadata) -> Vec<Address> {
    metadata.brokers().iter().map(|broker| (broker.host().to_owned(), broker.port() as u16)).collect()
}

fn unusable(error: &KafkaError) -> KafkaFailure {
    match error {
        KafkaError::ClientCreation(reason) => CONFIGURATION.failure(reason.as_str()),
        other => CONFIGURATION.failure(format!("creating a producer failed: {other}")),
    }
}

#[cfg(test)]
mod tests;
