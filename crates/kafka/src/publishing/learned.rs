//! What the relay learns about the size limits of topics from refused requests.
//!
//! Some limits cannot be read: without DescribeConfigs, or with tokens, because the client library's admin client cannot
//! authenticate with them. A producer then sends requests that such a topic may refuse although it accepts each of their
//! records. After a refusal, the next producer sends requests of at most half the size.

use crate::cluster::BATCH_BYTES_LEAST;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

const TOPICS_KEPT: usize = 4_096;

/// Shared with the polling threads of all producers.
#[derive(Default)]
pub(crate) struct LearnedLimits(Mutex<HashMap<String, Limit>>);

#[derive(Clone, Copy)]
enum Limit {
    /// It was read, so there is nothing to learn.
    Read,
    /// Requests of at most this size may be accepted.
    Learned(usize),
}

impl LearnedLimits {
    fn set(&self, topic: &str, limit: Limit) {
        let mut limits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if limits.len() >= TOPICS_KEPT && !limits.contains_key(topic) {
            limits.clear();
        }
        limits.insert(topic.to_owned(), limit);
    }

    fn get(&self, topic: &str) -> Option<Limit> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(topic).copied()
    }

    /// Records that the limit of this topic was read.
    pub(crate) fn read(&self, topic: &str) {
        self.set(topic, Limit::Read);
    }

    /// What was learned about this topic.
    pub(crate) fn of(&self, topic: &str) -> Option<usize> {
        match self.get(topic)? {
            Limit::Read => None,
            Limit::Learned(bytes) => Some(bytes),
        }
    }

    /// The smallest size that was learned.
    pub(crate) fn smallest(&self) -> Option<usize> {
        let limits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let learned = |limit: &Limit| if let Limit::Learned(bytes) = limit { Some(*bytes) } else { None };
        limits.values().filter_map(learned).min()
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Records that a topic has refused a request for its size, from a producer whose requests have at most `request_bytes`.
    /// Returns whether a smaller request may succeed: the limit cannot be read, and the record is so small that the request
    /// may have contained others.
    pub(crate) fn refused(&self, topic: &str, record_bytes: usize, request_bytes: usize) -> bool {
        let half = (request_bytes / 2).max(BATCH_BYTES_LEAST);
        let known = self.get(topic);
        if matches!(known, Some(Limit::Read)) || request_bytes <= BATCH_BYTES_LEAST || record_bytes > half {
            return false;
        }
        if !matches!(known, Some(Limit::Learned(bytes)) if bytes <= half) {
            tracing::info!(
                code = "request_size_learned",
                topic,
                bytes = half,
                "topic {topic} refuses requests of up to {request_bytes} bytes, and its max.message.bytes cannot be read: the \
                 next producer sends requests of at most {half} bytes. To avoid refused requests, grant the relay's Kafka user \
                 DescribeConfigs on the topic, or set \"batch.size\" in [kafka.properties] below the topic's limit"
            );
            self.set(topic, Limit::Learned(half));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        limits.read("a");
        assert!(!limits.refused("a", 10, 1_000_000));
        assert_eq!(limits.smallest(), None);
    }
}
