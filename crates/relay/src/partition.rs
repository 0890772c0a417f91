//! Which partition a key belongs to. The rule is that of Kafka's Java producer, so other producers of the topic and
//! consumers that join topics agree with it.
//!
//! The cycle computes the partition itself because it must know it before it sends a row: the first row of each partition
//! is sent alone. librdkafka's partitioner is never used.
//!
//! Each session looks up the number of partitions of a topic in the metadata of its own producer. [`Counts`] makes all
//! sessions of the process look it up again at the same time, between two batches, so that they agree on it.

use crate::Stats;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How often a session looks up a topic that is in use. All relays do it at the same times of the clock, so that a key does not
/// alternate between two partitions for long after their number has changed.
pub(crate) const LOOK_UP_EVERY: Duration = Duration::from_secs(30);
/// Brokers may disagree for this long about a change.
const SETTLED_AFTER: Duration = Duration::from_secs(5);
const TOPICS_KEPT: usize = 10_000;

/// The number of partitions of each topic, as a session of this process found it last.
#[derive(Default)]
pub struct Counts {
    stats: Arc<Stats>,
    known: RefCell<HashMap<String, Known>>,
    changes: Cell<u64>,
    all_at: Cell<Option<Instant>>,
}

struct Known {
    partitions: u32,
    changed_at: Option<Instant>,
}

impl Counts {
    pub(crate) fn new(stats: Arc<Stats>) -> Counts {
        Counts { stats, ..Counts::default() }
    }

    /// Looks topics up when all relays do. `since` is the time since a moment that is the same for all, such as 1970.
    pub fn follow_the_clock(&self, since: Duration) {
        let gone = Duration::from_nanos((since.as_nanos() % LOOK_UP_EVERY.as_nanos()) as u64);
        self.all_at.set(Instant::now().checked_sub(gone));
    }

    /// Whether a topic that was looked up at `at` has to be looked up again.
    pub(crate) fn is_due(&self, at: Instant, now: Instant) -> bool {
        let Some(first) = self.all_at.get() else { return now.duration_since(at) >= LOOK_UP_EVERY };
        let times = |at: Instant| at.saturating_duration_since(first).as_nanos() / LOOK_UP_EVERY.as_nanos();
        times(at) < times(now)
    }

    /// How many times the number of partitions of some topic has changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.get()
    }

    /// Whether the number of partitions of this topic has changed since then.
    pub(crate) fn changed_since(&self, topic: &str, at: Instant) -> bool {
        let known = self.known.borrow();
        known.get(topic).and_then(|known| known.changed_at).is_some_and(|changed| changed >= at)
    }

    /// Records that a session has found this number of partitions. Returns false if it contradicts a change that another
    /// session has found just now: the session must then look it up again.
    pub(crate) fn found(&self, topic: &str, partitions: u32) -> bool {
        let mut topics = self.known.borrow_mut();
        let Some(known) = topics.get_mut(topic) else {
            if topics.len() >= TOPICS_KEPT {
                topics.clear();
            }
            topics.insert(topic.to_owned(), Known { partitions, changed_at: None });
            return true;
        };
        if known.partitions == partitions {
            return true;
        }
        if known.changed_at.is_some_and(|at| at.elapsed() < SETTLED_AFTER) {
            return false;
        }
        tracing::warn!(
            code = "partitions_changed",
            topic,
            before = known.partitions,
            now = partitions,
            "the number of partitions of a topic has changed: new events of some keys go to other partitions. To keep the \
             order of each key across such a change, pause the topic first (docs/record-format.md, Changing the number \
             of partitions)"
        );
        self.stats.notes.partitions_changed(topic, known.partitions, partitions);
        *known = Known { partitions, changed_at: Some(Instant::now()) };
        self.changes.set(self.changes.get() + 1);
        true
    }
}

/// The partition of a key in a topic of `partitions` partitions, as
/// `org.apache.kafka.clients.producer.internals.BuiltInPartitioner.partitionForKey` computes it.
pub fn of(key: &[u8], partitions: u32) -> u32 {
    (murmur2(key) & 0x7fff_ffff) % partitions
}

/// Murmur2, 32 bits, with the seed of `org.apache.kafka.common.utils.Utils.murmur2`.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (position, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * position);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_change_is_found_once_and_not_undone_by_a_broker_that_lags() {
        let counts = Counts::default();
        let begun = Instant::now();
        assert!(counts.found("events.order", 3) && counts.found("events.order", 3));
        assert!(!counts.changed_since("events.order", begun) && counts.changes() == 0);
        advance(LOOK_UP_EVERY).await;
        assert!(counts.found("events.order", 12));
        assert!(counts.changed_since("events.order", begun) && counts.changes() == 1);
        assert!(!counts.found("events.order", 3), "this broker does not know the change yet");
        assert!(counts.found("events.order", 12) && counts.changes() == 1);
        advance(SETTLED_AFTER).await;
        assert!(!counts.changed_since("events.order", Instant::now()));
        assert!(counts.found("events.order", 3), "the topic was created again");
        assert_eq!(counts.changes(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn relays_look_topics_up_at_the_same_time_whenever_they_started() {
        let (first, second) = (Counts::default(), Counts::default());
        first.all_at.set(Some(Instant::now()));
        advance(LOOK_UP_EVERY / 2).await;
        second.all_at.set(first.all_at.get());
        let at = Instant::now();
        advance(LOOK_UP_EVERY / 2 - Duration::from_millis(1)).await;
        assert!([&first, &second].iter().all(|counts| !counts.is_due(at, Instant::now())));
        advance(Duration::from_millis(1)).await;
        assert!([&first, &second].iter().all(|counts| counts.is_due(at, Instant::now())));
        let counts = Counts::default();
        counts.follow_the_clock(3 * LOOK_UP_EVERY);
        assert_eq!(counts.all_at.get(), Some(Instant::now()));
    }

    #[test]
    fn the_counts_of_any_number_of_topics_take_bounded_memory() {
        let counts = Counts::default();
        for number in 0..3 * TOPICS_KEPT {
            counts.found(&format!("events.{number}"), 3);
        }
        assert!(counts.known.borrow().len() <= TOPICS_KEPT);
    }

    /// The values of Kafka's `UtilsTest.testMurmur2`.
    #[test]
    fn murmur2_matches_the_java_client() {
        let golden: [(&[u8], i32); 8] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            (b"abc", 479_470_107),
            (b"", 275_646_681),
            (b"a", -1_563_381_124),
        ];
        for (key, hash) in golden {
            assert_eq!(murmur2(key) as i32, hash, "{:?}", String::from_utf8_lossy(key));
        }
    }
}
