//! The cluster: opens producers for sessions, and short-lived ones to judge rows and to probe.

use crate::client::{self, Address, Comparison, METADATA_TIMEOUT, client_config, number};
use crate::errors::blocking;
use crate::headers::HeaderTemplate;
use crate::limits::{BATCH_BYTES_LEAST, TopicLimits};
use crate::options::{Kafka, Property};
use crate::producer::{KafkaProducer, Shared, not_sent, start};
use crate::reports::{Context, CriticalLogs, Reports, Statistics};
use crate::tls::explained;
use crate::tokens::Tokens;
use rdkafka::ClientConfig;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::producer::{BaseProducer, Producer as _};
use relay::Limits;
use relay::failure::{FailureKind, KafkaFailure};
use relay::health::stats::Stats;
use relay::outbox::Event;
use relay::publisher::{DeliveryReport, Judged, Producer, Publisher};
use relay::reason::{BROKERS_DOWN, CLIENT_FAILED, CONFIGURATION, NO_ANSWER, RECORD_TOO_LARGE, TOKEN};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

/// librdkafka's own default of `message.max.bytes`.
const RECORD_BYTES_MAX: usize = 1_000_000;
/// The size of a producer batch in addition to its records.
const BATCH_OVERHEAD: usize = 1_024;
/// After this time without a response, the client replaces a connection and sends its requests again, with the same
/// sequence numbers, so the brokers store nothing twice. A share of `publish_timeout`, so that this happens before the relay
/// concludes from the silence that a partition is stuck.
const SILENT_MOST: Duration = Duration::from_secs(6);
const SILENT_LEAST: Duration = Duration::from_secs(1);
const SILENT_SHARE: u32 = 6;
/// How often a producer reports its statistics. Their size grows with the number of partitions; 1,000 take some
/// milliseconds.
const STATISTICS_INTERVAL: &str = "statistics.interval.ms";
const STATISTICS_EVERY_MS: &str = "10000";
/// How long the producer of a probe is kept for the next session. Afterwards, its connections may be dead.
const SPARE_FOR: Duration = Duration::from_secs(10);
/// How long the brokers may take to assign a producer ID once they answer.
const IDENTIFIED_WITHIN: Duration = Duration::from_secs(5);
/// How long to wait for the producer ID after each metadata response.
const ASK_AGAIN: Duration = Duration::from_millis(50);

pub struct KafkaCluster {
    settings: RefCell<Kafka>,
    batches: Cell<Limits>,
    /// With SASL OAUTHBEARER.
    tokens: Option<Arc<Tokens>>,
    shared: Rc<Shared>,
    critical_logs: Arc<CriticalLogs>,
    /// The client's own metrics, if enabled.
    statistics: Option<Arc<Statistics>>,
    /// The producer of the last probe, for the next session.
    spare: RefCell<Option<(Instant, KafkaProducer)>>,
    /// The producer that judged the last single row.
    judging: RefCell<Option<(Instant, KafkaProducer)>>,
    comparison: Comparison,
}

/// The largest allowed record of this configuration, in bytes.
pub fn record_bytes_max(kafka: &Kafka) -> usize {
    let own = kafka.properties.get("message.max.bytes").and_then(Property::plain);
    own.and_then(|bytes| bytes.parse().ok()).unwrap_or(RECORD_BYTES_MAX)
}

impl KafkaCluster {
    /// The cluster of this configuration. Connects to nothing yet.
    pub fn new(
        kafka: &Kafka,
        headers: &[HeaderTemplate],
        limits: &Limits,
    ) -> Result<KafkaCluster, KafkaFailure> {
        let tokens = Tokens::of(kafka);
        client_config(kafka)?; // a secret that cannot be read is an error now
        // The client library's admin client cannot authenticate with a token.
        let asks_with = tokens.is_none().then(|| kafka.clone());
        let shared = Shared {
            limits: TopicLimits::new(asks_with, record_bytes_max(kafka)),
            headers: headers.to_vec(),
            topic: RefCell::default(),
        };
        Ok(KafkaCluster {
            settings: RefCell::new(kafka.clone()),
            batches: Cell::new(*limits),
            tokens,
            shared: Rc::new(shared),
            critical_logs: Arc::default(),
            statistics: None,
            spare: RefCell::new(None),
            judging: RefCell::new(None),
            comparison: Comparison::default(),
        })
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
        self.batches.set(*limits);
        self.spare.replace(None);
        self.judging.replace(None);
        self.tokens.iter().for_each(|tokens| tokens.renew());
        self.shared.limits.reconfigure(kafka.clone());
    }

    /// The largest allowed record, in bytes.
    pub fn record_bytes_max(&self) -> usize {
        self.shared.limits.record_bytes_max
    }

    /// Checks whether librdkafka accepts the settings: some mistakes show only in their combination. Does not connect.
    pub fn check_settings(&self) -> Result<(), KafkaFailure> {
        let mut config = self.producer_config()?;
        config.remove("bootstrap.servers");
        let created: KafkaResult<BaseProducer<Context>> =
            BaseProducer::from_config_and_context(&config, self.context(&config));
        created.map(drop).map_err(|error| unusable(&error))
    }

    /// The configuration of an idempotent producer. The settings behind the guarantees override the user's properties,
    /// which [`check_property`](crate::options::check_property) has already checked.
    fn producer_config(&self) -> Result<ClientConfig, KafkaFailure> {
        let batches = self.batches.get();
        let limits = &self.shared.limits;
        let mut config = client_config(&self.settings.borrow())?;
        for (name, value) in [("compression.type", "lz4"), ("linger.ms", "0")] {
            if config.get(name).is_none() {
                config.set(name, value);
            }
        }
        if self.statistics.is_some() && config.get(STATISTICS_INTERVAL).is_none() {
            config.set(STATISTICS_INTERVAL, STATISTICS_EVERY_MS);
        }
        if config.get("socket.timeout.ms").is_none() {
            let silent_for = (batches.publish_timeout / SILENT_SHARE).clamp(SILENT_LEAST, SILENT_MOST);
            config.set("socket.timeout.ms", silent_for.as_millis().to_string());
        }
        let wanted = number(&config, "batch.size").unwrap_or(RECORD_BYTES_MAX);
        let batch_bytes = wanted.min(limits.smallest().saturating_sub(BATCH_OVERHEAD)).max(BATCH_BYTES_LEAST);
        config.set("batch.size", batch_bytes.to_string());
        config.set("acks", "all");
        config.set("enable.idempotence", "true");
        config.set("enable.gapless.guarantee", "true");
        config.set("message.timeout.ms", "0");
        config.set("partitioner", "murmur2_random");
        config.set("topic.metadata.propagation.max.ms", "3000");
        // `eos` logs a line when the producer gets its ID, and a few more when it loses it. `feature` logs about 100 lines for each
        // connection. Neither logs anything per record or partition.
        let debug = config.get("debug").map(|debug| format!("{debug},"));
        let debug = debug.unwrap_or_default() + "eos,feature";
        config.set("debug", debug);
        config.set_log_level(RDKafkaLogLevel::Debug);
        // The queue holds two batches, so it is never full.
        config.set("queue.buffering.max.messages", (2 * batches.batch_rows).max(10_000).to_string());
        let kilobytes = (4 * (batches.batch_bytes + limits.record_bytes_max) / 1_024).max(16 * 1_024);
        config.set("queue.buffering.max.kbytes", kilobytes.min(2_097_151).to_string());
        Ok(config)
    }

    /// A producer that connects by itself, in the background, whether or not a broker answers.
    pub async fn connecting(&self) -> Result<KafkaProducer, KafkaFailure> {
        self.create(self.producer_config()?).await
    }

    async fn create(&self, config: ClientConfig) -> Result<KafkaProducer, KafkaFailure> {
        let (tokens, context) = (self.tokens.clone(), self.context(&config));
        let started = spawn_blocking(move || {
            if let Some(tokens) = tokens {
                // Without a token, no broker answers, and librdkafka does not report why.
                tokens.get().map_err(|error| TOKEN.failure(error))?;
            }
            start(&config, context).map_err(|error| unusable(&error))
        });
        let started = started.await.map_err(|error| KafkaFailure::unknown(error.to_string()))??;
        Ok(KafkaProducer::new(started, Rc::clone(&self.shared)))
    }

    fn context(&self, config: &ClientConfig) -> Context {
        Context {
            reports: Reports::default(),
            critical_logs: Arc::clone(&self.critical_logs),
            tokens: self.tokens.clone(),
            watched: self.statistics.as_ref().map(Statistics::watch),
            learned: Arc::clone(&self.shared.limits.learned),
            request_bytes: number(config, "batch.size").unwrap_or(RECORD_BYTES_MAX),
        }
    }

    /// A producer to which a broker of the right cluster has answered. This needs no permission.
    async fn answering(&self, config: ClientConfig) -> Result<KafkaProducer, KafkaFailure> {
        let producer = self.create(config.clone()).await?;
        let client = producer.client();
        let answered = spawn_blocking(move || client.client().fetch_cluster_id(METADATA_TIMEOUT));
        let (answered, ()) = tokio::join!(answered, self.shared.limits.prepare());
        let Ok(Some(id)) = answered else {
            self.shared.limits.renew();
            return Err(self.unreachable(config, producer.reports()).await);
        };
        producer.reports().confirmation.confirm(&id);
        self.comparison.check(id).await?;
        Ok(producer)
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
        let producer = self.answering(self.producer_config()?).await?;
        let reports = producer.reports();
        let (begun, mut advertised) = (Instant::now(), Vec::new());
        while !reports.is_identified() {
            if let Some(cause) = producer.cause() {
                return Err(cause);
            }
            if begun.elapsed() > IDENTIFIED_WITHIN {
                // The broker that answered may have been another one.
                let last = reports.last_error();
                let refused = reports.refused_by_broker();
                if let Some(refused) = refused.filter(|refused| last.as_ref() == Some(&refused.error)) {
                    return Err(refused);
                }
                let why = last.map_or_else(String::new, |error| format!(": {error}"));
                let error =
                    format!("the brokers did not assign a producer ID within {IDENTIFIED_WITHIN:?}{why}");
                return Err(self.unusable_addresses().await.unwrap_or_else(|| NO_ANSWER.failure(error)));
            }
            // Ask for a single topic if one is known, because the answer about all topics may be large.
            let (client, topic) = (producer.client(), self.shared.topic.borrow().clone());
            let fetch = move || client.client().fetch_metadata(topic.as_deref(), METADATA_TIMEOUT);
            match blocking("fetching metadata", fetch).await {
                Ok(metadata) => {
                    let brokers = metadata.brokers().iter();
                    advertised = brokers.map(|at| (at.host().to_owned(), at.port() as u16)).collect();
                }
                Err(failure) => tracing::debug!("{failure}"),
            }
            let done =
                |reports: &Reports| reports.is_identified() || reports.is_fatal() || reports.has_failed();
            _ = timeout(ASK_AGAIN, reports.wait(false, done)).await;
        }
        if let Some(id) = producer.client().client().fetch_cluster_id(Duration::ZERO) {
            reports.confirmation.confirm(&id);
        }
        Ok((producer, advertised))
    }

    /// Names the addresses that the brokers advertise and that this host cannot use.
    pub async fn unusable_addresses(&self) -> Option<KafkaFailure> {
        client::unusable(&self.bootstrap_servers(), &self.advertised().await).await
    }

    async fn advertised(&self) -> Vec<Address> {
        let Ok(config) = client_config(&self.settings.borrow()) else { return Vec::new() };
        client::listed(config, self.tokens.clone()).await
    }

    fn bootstrap_servers(&self) -> String {
        self.settings.borrow().bootstrap_servers.clone()
    }

    async fn unreachable(&self, config: ClientConfig, reports: &Reports) -> KafkaFailure {
        let refused = reports.refused().or_else(|| reports.refused_by_broker());
        let failure = refused.unwrap_or_else(|| {
            BROKERS_DOWN.failure(format!(
                "no broker reachable at {}: {}",
                self.bootstrap_servers(),
                reports.last_error().unwrap_or_else(|| format!("no response for {METADATA_TIMEOUT:?}"))
            ))
        });
        let error = failure.error.clone();
        match spawn_blocking(move || explained(&error, &config)).await {
            Ok(error) => KafkaFailure { error, ..failure },
            Err(_) => failure,
        }
    }
}

impl Publisher for KafkaCluster {
    type Producer = KafkaProducer;

    async fn open(&self) -> Result<KafkaProducer, KafkaFailure> {
        // The client would connect again and again, perhaps with an old password.
        self.judging.borrow_mut().take_if(|(at, _)| at.elapsed() >= SPARE_FOR);
        match self.spare.take() {
            Some((at, producer)) if at.elapsed() < SPARE_FOR && producer.is_sound() => Ok(producer),
            _ => Ok(self.identified().await?.0),
        }
    }

    async fn judge<E: Event>(
        &self,
        topic: &str,
        partition: u32,
        rows: &[&E],
        patience: Duration,
        may_send: impl Fn() -> bool,
    ) -> Judged {
        // A single row can leave no gap, so its producer judges the next one too: opening a producer takes longer than judging.
        let (single, generation) = (rows.len() == 1, self.shared.limits.generation.get());
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
        let mut judged = Judged { acknowledged: 0, failure: None };
        if may_send() {
            judged = publish(&mut alone, topic, partition, first, patience).await;
        }
        if judged.acknowledged > 0 && !others.is_empty() && may_send() {
            let behind = publish(&mut alone, topic, partition, others, patience).await;
            judged = Judged { acknowledged: first.len() + behind.acknowledged, ..behind };
        }
        let is_clear = judged.failure.as_ref().is_none_or(|failure| failure.kind == FailureKind::Row);
        if single && is_clear && alone.may_continue() && generation == self.shared.limits.generation.get() {
            self.judging.replace(Some((Instant::now(), alone)));
        }
        if judged.failure.as_ref().is_some_and(|failure| failure.reason == RECORD_TOO_LARGE.word) {
            self.shared.limits.forget(topic);
        }
        judged
    }

    async fn probe(&self) -> Result<(), KafkaFailure> {
        let generation = self.shared.limits.generation.get();
        let (producer, mut advertised) = self.identified().await?;
        // The producer ID may come from a bootstrap connection, which publishes nothing.
        if advertised.is_empty() {
            advertised = self.advertised().await;
        }
        if let Some(failure) = client::all_unusable(&self.bootstrap_servers(), &advertised).await {
            return Err(failure);
        }
        // After a reload, it may have the old settings.
        if generation == self.shared.limits.generation.get() {
            self.spare.replace(Some((Instant::now(), producer)));
        }
        Ok(())
    }

    async fn open_for_probes(&self) -> Result<KafkaProducer, KafkaFailure> {
        let mut config = self.producer_config()?;
        // With this guarantee, one refused row would end the producer and purge the rows of all other topics. One row per
        // partition cannot leave a gap.
        config.set("enable.gapless.guarantee", "false");
        self.answering(config).await
    }
}

async fn publish<E: Event>(
    producer: &mut KafkaProducer,
    topic: &str,
    partition: u32,
    rows: &[&E],
    patience: Duration,
) -> Judged {
    let mut outcomes: Vec<Result<(), KafkaFailure>> =
        vec![Err(KafkaFailure::unknown("request timed out")); rows.len()];
    for (index, row) in rows.iter().enumerate() {
        if let Err(refusal) = producer.send(index as u32, topic, partition, *row) {
            outcomes[index] = Err(not_sent(refusal));
            break;
        }
    }
    // Rows whose reports are late keep the unknown outcome from above.
    let late = timeout(patience, producer.all_reported()).await.is_err();
    let mut reports = Vec::new();
    producer.take_reports(&mut reports);
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

fn unusable(error: &KafkaError) -> KafkaFailure {
    match error {
        // A limit of the host, which may be reached only for a moment.
        KafkaError::ClientCreation(reason) if reason.contains("thread") => {
            CLIENT_FAILED.failure(reason.as_str())
        }
        KafkaError::ClientCreation(reason) => CONFIGURATION.failure(reason.as_str()),
        other => CONFIGURATION.failure(format!("creating a producer failed: {other}")),
    }
}

#[cfg(test)]
mod tests;
