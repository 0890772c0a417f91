//! The size limits of topics, `max.message.bytes`. Producer requests stay below the smallest one in use.
//!
//! Some limits cannot be read: without DescribeConfigs, or with tokens, because the client library's admin client cannot
//! authenticate with them. A producer then sends requests that such a topic may refuse although it accepts each of their
//! records. After a refusal, the next producer sends requests of at most half the size.

use crate::client::client_config;
use crate::elsewhere;
use crate::errors::failure;
use crate::options::Kafka;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaResult;
use relay::failure::KafkaFailure;
use relay::health::stats::lock;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// The smallest producer batch, even if a topic's limit is lower.
pub(crate) const BATCH_BYTES_LEAST: usize = 4_096;

/// Kafka's default of `max.message.bytes`.
pub(crate) const DEFAULT: usize = 1_048_588;
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
const KNOWN_FOR: Duration = Duration::from_secs(600);
const UNKNOWN_FOR: Duration = Duration::from_secs(60);
/// A limit that has expired for so long belongs to a topic without events.
const UNUSED_AFTER: Duration = Duration::from_secs(3_600);

const TOPICS_KEPT: usize = 4_096;

/// The admin client. Dropping it waits for its threads, so another thread does that.
struct Admin(Option<AdminClient<DefaultClientContext>>);

impl Drop for Admin {
    fn drop(&mut self) {
        let client = self.0.take();
        elsewhere(move || drop(client));
    }
}

#[derive(Default)]
pub(crate) struct TopicLimits {
    /// librdkafka's `message.max.bytes`, the largest allowed record.
    pub record_bytes_max: usize,
    /// `None` if the limits cannot be read.
    settings: RefCell<Option<Kafka>>,
    /// Created with the first producer, and again after a change of the configuration or a read without an answer.
    admin: RefCell<Option<Rc<Admin>>>,
    /// The limit of each topic, and how long it is valid.
    known: RefCell<HashMap<String, (usize, Instant)>>,
    /// What refused requests show about limits that cannot be read.
    pub(crate) learned: Arc<LearnedLimits>,
    /// Until when no limit is read, because the last attempt got no answer.
    unanswered_until: Cell<Option<Instant>>,
    /// How many times the configuration has changed.
    pub(crate) generation: Cell<u64>,
}

impl TopicLimits {
    pub(crate) fn new(settings: Option<Kafka>, record_bytes_max: usize) -> TopicLimits {
        TopicLimits { record_bytes_max, settings: RefCell::new(settings), ..TopicLimits::default() }
    }

    /// Creates the admin client on another thread before a claim needs it, because that takes as long as creating a producer.
    pub(crate) async fn prepare(&self) {
        if self.admin.borrow().is_some() {
            return;
        }
        let (settings, generation) = (self.settings.borrow().clone(), self.generation.get());
        let Some(settings) = settings else { return };
        // Reads the secrets again, as each producer does.
        let Ok(Ok(admin)) = tokio::task::spawn_blocking(move || admin(&settings)).await else { return };
        let admin = Rc::new(Admin(Some(admin)));
        let mut known = self.admin.borrow_mut();
        if known.is_none() && generation == self.generation.get() {
            *known = Some(admin);
        }
    }

    /// Drops the admin client, whose password or certificate may have been replaced. The next read creates another one.
    pub(crate) fn renew(&self) {
        self.admin.take();
    }

    /// Uses this configuration, whose secrets may have changed, if the limits can be read at all.
    pub(crate) fn reconfigure(&self, settings: Kafka) {
        if let Some(current) = self.settings.borrow_mut().as_mut() {
            *current = settings;
        }
        self.generation.set(self.generation.get() + 1);
        self.learned.clear();
        self.known.borrow_mut().clear();
        self.unanswered_until.set(None);
        self.renew();
    }

    /// The topic's limit, read from this broker and remembered. Kafka's default if it cannot be read.
    pub(crate) async fn of(&self, topic: &str, broker: Option<i32>) -> usize {
        let learned = || self.learned.of(topic).unwrap_or(usize::MAX);
        let before = self.known.borrow().get(topic).copied();
        if let Some((limit, _)) = before.filter(|(_, until)| *until > Instant::now()) {
            return limit.min(learned());
        }
        let generation = self.generation.get();
        let answer = self.read(topic, broker).await;
        match answer {
            Some(_) => self.learned.set(topic, None), // the limit was read, so there is nothing to learn
            None => self.learned.forget_read(topic),
        }
        // Limits may change, so read them again from time to time, and soon if there was no answer.
        let valid_for = if answer.is_some() { KNOWN_FOR } else { UNKNOWN_FOR };
        let limit = answer.or(before.map(|(limit, _)| limit)).unwrap_or(DEFAULT);
        if generation == self.generation.get() {
            self.remember(topic, limit, Instant::now() + valid_for);
        }
        limit.min(learned())
    }

    /// Remembers a limit. If there are too many, the one that expires first is forgotten.
    fn remember(&self, topic: &str, limit: usize, until: Instant) {
        let mut known = self.known.borrow_mut();
        if known.len() >= TOPICS_KEPT && !known.contains_key(topic) {
            let first = known.iter().min_by_key(|(_, (_, until))| *until).map(|(topic, _)| topic.clone());
            first.map(|topic| known.remove(&topic));
        }
        known.insert(topic.to_owned(), (limit, until));
    }

    /// Forgets a limit that was wrong, because a request was refused for its size.
    pub(crate) fn forget(&self, topic: &str) {
        self.known.borrow_mut().remove(topic);
    }

    pub(crate) fn smallest(&self) -> usize {
        let (known, now) = (self.known.borrow(), Instant::now());
        let in_use = known.values().filter(|(_, until)| now.saturating_duration_since(*until) < UNUSED_AFTER);
        let limits = in_use.map(|(limit, _)| *limit);
        limits.chain(self.learned.smallest()).min().unwrap_or(usize::MAX)
    }

    async fn read(&self, topic: &str, broker: Option<i32>) -> Option<usize> {
        if self.unanswered_until.get().is_some_and(|until| until > Instant::now()) {
            return None;
        }
        self.prepare().await;
        let admin = self.admin.borrow().clone()?;
        let answer = settings_of(admin.0.as_ref()?, topic, broker, ASK_TIMEOUT).await;
        if answer.is_err() {
            // This broker may be unreachable. The lookups of other topics must not wait for it too.
            self.unanswered_until.set(Some(Instant::now() + UNKNOWN_FOR));
            let is_current = self.admin.borrow().as_ref().is_some_and(|current| Rc::ptr_eq(current, &admin));
            if is_current {
                self.renew();
            }
        }
        value(&answer.ok()??, "max.message.bytes")
    }
}

/// An admin client, which connects in the background.
pub(crate) fn admin(settings: &Kafka) -> Result<AdminClient<DefaultClientContext>, KafkaFailure> {
    quiet(client_config(settings)?).create().map_err(|error| failure("creating a client", &error))
}

/// Nothing polls the main queue of an admin client, so statistics and log lines would accumulate there. Errors of connections still
/// do, at most a few a minute.
fn quiet(mut config: ClientConfig) -> ClientConfig {
    config.remove("debug");
    config.set("statistics.interval.ms", "0");
    config.set_log_level(RDKafkaLogLevel::Emerg);
    config
}

/// The settings of a topic, from this broker; `None` if this user may not read them.
///
/// Any broker knows them. Without a broker ID, librdkafka would wait for the controller, which a mock cluster lacks.
pub(crate) async fn settings_of(
    admin: &AdminClient<DefaultClientContext>,
    topic: &str,
    broker: Option<i32>,
    within: Duration,
) -> KafkaResult<Option<ConfigResource>> {
    let options = AdminOptions::new().request_timeout(Some(within)).broker_id(broker);
    let answer = admin.describe_configs([&ResourceSpecifier::Topic(topic)], &options).await?;
    Ok(answer.into_iter().next().and_then(Result::ok))
}

pub(crate) fn value<T: FromStr>(settings: &ConfigResource, name: &str) -> Option<T> {
    settings.get(name)?.value.as_ref()?.parse().ok()
}

/// The request size that each topic may accept; `None` if its limit was read, so there is nothing to learn. Shared with the
/// polling threads of all producers.
#[derive(Default)]
pub(crate) struct LearnedLimits(Mutex<HashMap<String, Option<usize>>>);

impl LearnedLimits {
    fn set(&self, topic: &str, limit: Option<usize>) {
        let mut limits = lock(&self.0);
        if limits.len() >= TOPICS_KEPT && !limits.contains_key(topic) {
            limits.clear();
        }
        limits.insert(topic.to_owned(), limit);
    }

    /// What was learned about this topic.
    fn of(&self, topic: &str) -> Option<usize> {
        lock(&self.0).get(topic).copied().flatten()
    }

    /// Learns about this topic again, because its limit can no longer be read.
    fn forget_read(&self, topic: &str) {
        let mut limits = lock(&self.0);
        if limits.get(topic) == Some(&None) {
            limits.remove(topic);
        }
    }

    fn smallest(&self) -> Option<usize> {
        lock(&self.0).values().flatten().min().copied()
    }

    fn clear(&self) {
        lock(&self.0).clear();
    }

    /// Records that a topic has refused a request for its size, from a producer whose requests have at most `request_bytes`.
    /// Returns whether a smaller request may succeed: the limit cannot be read, and the record is so small that the request
    /// may have contained others.
    pub(crate) fn refused(&self, topic: &str, record_bytes: usize, request_bytes: usize) -> bool {
        let half = (request_bytes / 2).max(BATCH_BYTES_LEAST);
        let known = lock(&self.0).get(topic).copied();
        if known == Some(None) || request_bytes <= BATCH_BYTES_LEAST || record_bytes > half {
            return false;
        }
        if known.flatten().is_none_or(|bytes| bytes > half) {
            tracing::info!(
                code = "request_size_learned",
                topic,
                bytes = half,
                "topic {topic} refuses requests of up to {request_bytes} bytes, and its max.message.bytes cannot be read: the \
                 next producer sends requests of at most {half} bytes. To avoid refused requests, grant the relay's Kafka user \
                 DescribeConfigs on the topic, or set \"batch.size\" in [kafka.properties] below the topic's limit"
            );
            self.set(topic, Some(half));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_10_000_topics_take_bounded_memory() {
        let limits = TopicLimits::new(None, DEFAULT);
        let begun = Instant::now();
        for number in 0..10_000_usize {
            let until = begun + Duration::from_secs(number as u64);
            limits.remember(&format!("events.{number}"), 10_000 + number, until);
        }
        assert_eq!(limits.known.borrow().len(), TOPICS_KEPT);
        assert_eq!(limits.smallest(), 20_000 - TOPICS_KEPT, "the latest are kept");
    }

    /// For example of a topic that was deleted.
    #[tokio::test(start_paused = true)]
    async fn the_limit_of_a_topic_without_events_limits_no_other_topic() {
        let limits = TopicLimits::new(None, DEFAULT);
        limits.remember("a", 10_000, Instant::now() + KNOWN_FOR);
        limits.remember("b", 20_000, Instant::now() + 2 * UNUSED_AFTER);
        tokio::time::advance(KNOWN_FOR + UNUSED_AFTER / 2).await;
        assert_eq!(limits.smallest(), 10_000);
        tokio::time::advance(UNUSED_AFTER / 2).await;
        assert_eq!(limits.smallest(), 20_000);
    }

    #[test]
    fn a_refused_request_halves_the_next_ones_once() {
        let limits = LearnedLimits::default();
        assert!(limits.refused("a", 1_000, 1_000_000) && limits.refused("a", 2_000, 1_000_000));
        assert_eq!((limits.of("a"), limits.smallest()), (Some(500_000), Some(500_000)));
        assert!(limits.refused("a", 1_000, 499_000));
        assert_eq!(limits.of("a"), Some(249_500));
        assert!(limits.refused("a", 1_000, 1_000_000), "a producer of before");
        assert_eq!((limits.of("a"), limits.of("b")), (Some(249_500), None));
        limits.clear();
        assert_eq!(limits.smallest(), None);
    }

    #[test]
    fn nothing_is_learned_from_a_large_record_or_a_limit_that_was_read_or_the_smallest_request() {
        let limits = LearnedLimits::default();
        assert!(!limits.refused("a", 600_000, 1_000_000), "it may be larger than the limit");
        assert!(!limits.refused("a", 10, BATCH_BYTES_LEAST));
        limits.set("a", None);
        assert!(!limits.refused("a", 10, 1_000_000));
        assert_eq!(limits.smallest(), None);
    }

    #[test]
    fn a_limit_that_cannot_be_read_any_more_is_learned() {
        let limits = LearnedLimits::default();
        limits.set("a", None);
        limits.forget_read("a");
        assert!(limits.refused("a", 10, 1_000_000));
        limits.forget_read("a");
        assert!(limits.of("a").is_some(), "what was learned stays");
    }

    #[test]
    fn an_admin_client_reports_no_statistics_and_no_log_lines() {
        let mut config = ClientConfig::new();
        config.set("statistics.interval.ms", "1000").set("debug", "all");
        let config = quiet(config);
        assert_eq!(config.get("statistics.interval.ms"), Some("0"));
        assert_eq!(config.get("debug"), None);
    }
}
