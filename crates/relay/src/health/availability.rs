//! Whether servers, topics and rows are available. A lasting fault is logged once when it begins and once when it ends.

use crate::reason::{fix, remedy};
use crate::{KafkaFailure, Stats, until};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// If no task has failed for this long, idle tasks no longer keep the outage open. Longer than any backoff.
pub(crate) const IDLE_AFTER: Duration = Duration::from_secs(5);

pub const POSTGRES_ADVICE: &str =
    "Publishing resumes by itself. If this persists, run `outbox-relay check-config --connect`";

/// The prober's number. The scout is 0, and workers count from 1.
pub(crate) const PROBER: usize = usize::MAX;

/// Whether one thing, such as Postgres, works for every task that needs it: the scout, the workers and the prober.
pub struct Availability {
    what: &'static str,
    /// Its state during an outage, and afterwards.
    states: (&'static str, &'static str),
    /// The event code of its log lines, which docs/logs.md explains.
    code: &'static str,
    /// Shorter outages are not reported.
    patience: Duration,
    outage: RefCell<Option<Outage>>,
    ended_at: Cell<Option<Instant>>,
}

struct Outage {
    episode: Episode,
    reported: bool,
    error: String,
    /// The outage is over when it works for all of these again.
    tasks: HashSet<usize>,
}

impl Availability {
    pub fn new(what: &'static str, code: &'static str) -> Availability {
        Availability::lasting(what, code, Duration::ZERO)
    }

    pub(crate) fn lasting(what: &'static str, code: &'static str, patience: Duration) -> Availability {
        let states = ("unavailable", "available again");
        Availability { what, states, code, patience, outage: RefCell::default(), ended_at: Cell::default() }
    }

    /// Describes outages in these words instead of "unavailable" and "available again".
    pub fn described(self, during: &'static str, afterwards: &'static str) -> Availability {
        Availability { states: (during, afterwards), ..self }
    }

    /// Whether a failure of what began at this time belongs to an outage that has ended meanwhile. For example, a worker that
    /// waited for Kafka during a short outage of Postgres finds out only afterwards that its connection is closed.
    pub(crate) fn has_ended_since(&self, begun: Instant) -> bool {
        self.outage.borrow().is_none() && self.ended_at.get().is_some_and(|ended| ended > begun)
    }

    /// Records a failure for this task. An outage is logged once.
    pub fn failed(&self, task: usize, error: &dyn Display, advice: &str) {
        let mut current = self.outage.borrow_mut();
        // An unreported outage without a recent failure is over.
        if current.as_ref().is_some_and(|outage| !outage.reported && outage.episode.quiet() > IDLE_AFTER) {
            *current = None;
        }
        if let Some(outage) = current.as_mut() {
            outage.episode.again();
        }
        let outage = current.get_or_insert_with(|| Outage {
            episode: Episode::begin(),
            reported: false,
            error: String::new(),
            tasks: HashSet::new(),
        });
        outage.error = error.to_string();
        outage.tasks.insert(task);
        if outage.reported || outage.episode.age() < self.patience {
            tracing::debug!("{} still {}: {error}", self.what, self.states.0);
        } else {
            outage.reported = true;
            tracing::warn!(
                code = self.code,
                "{} {}, retrying: {error}. No events are lost. {advice}",
                self.what,
                self.states.0
            );
        }
    }

    /// Records a success for this task. The end of an outage is logged once, when it works for all tasks.
    pub fn worked(&self, task: usize) {
        self.forget(|failed, _| failed == task);
    }

    /// Ends the outage for the other tasks if nothing has failed for [`IDLE_AFTER`]. They are idle and may not try again for hours.
    pub fn needed_only_by(&self, tasks: &[usize]) {
        self.forget(|failed, quiet| !tasks.contains(&failed) && quiet > IDLE_AFTER);
    }

    fn forget(&self, forgets: impl Fn(usize, Duration) -> bool) {
        let mut current = self.outage.borrow_mut();
        let Some(outage) = current.as_mut() else { return };
        let quiet = outage.episode.quiet();
        outage.tasks.retain(|task| !forgets(*task, quiet));
        if outage.tasks.is_empty() {
            let (seconds, failed_attempts) = (rounded(outage.episode.age()), outage.episode.times);
            if outage.reported {
                tracing::info!(code = self.code, seconds, failed_attempts, "{} {}", self.what, self.states.1);
            }
            self.ended_at.set(Some(Instant::now()));
            *current = None;
        }
    }

    pub fn lasts(&self) -> Option<Duration> {
        self.outage.borrow().as_ref().map(|outage| outage.episode.age())
    }

    /// The error of an outage that has lasted for longer than this, if something has failed lately.
    pub(crate) fn still_fails(&self, longer_than: Duration) -> Option<String> {
        let current = self.outage.borrow();
        let fails =
            |outage: &&Outage| outage.episode.quiet() < 2 * IDLE_AFTER && outage.episode.age() > longer_than;
        current.as_ref().filter(fails).map(|outage| outage.error.clone())
    }

    /// The time from the first failure to the latest one.
    pub(crate) fn failed_for(&self) -> Option<Duration> {
        self.outage.borrow().as_ref().map(|outage| outage.episode.latest - outage.episode.since)
    }
}

/// Seconds for the log, with three decimals.
pub fn rounded(time: Duration) -> f64 {
    time.as_millis() as f64 / 1e3
}

/// Closed while Kafka is unavailable, so that nothing is claimed. Workers close it, and the prober opens it.
pub struct Gate {
    stats: Arc<Stats>,
    pub(crate) kafka: Availability,
    is_open: Cell<bool>,
    /// The last failure that closed it, until Kafka works.
    reason: RefCell<Option<KafkaFailure>>,
    /// When a failure last closed it, until a row is acknowledged. A probe may not detect the cause.
    failed_at: Cell<Option<Instant>>,
    /// It was opened and closed again before any row was acknowledged.
    pub(crate) is_flapping: Cell<bool>,
    changed: Notify,
}

impl Gate {
    /// A closed gate, because it is not known yet whether Kafka answers.
    pub(crate) fn new(stats: Arc<Stats>) -> Gate {
        Gate {
            stats,
            kafka: Availability::new("kafka", "kafka_unavailable"),
            is_open: Cell::default(),
            reason: RefCell::default(),
            failed_at: Cell::default(),
            is_flapping: Cell::default(),
            changed: Notify::new(),
        }
    }

    /// Closes the gate until a probe succeeds.
    pub(crate) fn close(&self, failure: KafkaFailure) {
        self.reason.replace(Some(failure));
        if self.is_open.replace(false) {
            self.is_flapping.set(self.failed_at.get().is_some());
        }
        self.failed_at.set(Some(Instant::now()));
        self.changed.notify_waiters();
    }

    pub fn open(&self) {
        self.is_open.set(true);
        self.changed.notify_waiters();
    }

    pub fn is_open(&self) -> bool {
        self.is_open.get()
    }

    /// How long ago a failure closed the gate, if no row was acknowledged since.
    pub(crate) fn since_failure(&self) -> Option<Duration> {
        self.failed_at.get().map(|at| at.elapsed())
    }

    pub(crate) fn failed(&self, failure: &KafkaFailure) {
        self.stats.kafka.fails(failure);
        let advice =
            format!("Publishing is suspended and resumes by itself. {}", fix(remedy(failure.reason)));
        self.kafka.failed(0, failure, &advice);
    }

    /// Reports that Kafka works, and forgets the last failure.
    pub fn works(&self) {
        self.reason.replace(None);
        self.failed_at.set(None);
        self.is_flapping.set(false);
        self.stats.kafka.answers();
        self.kafka.worked(0);
    }

    /// Records that a row was acknowledged, which proves that Kafka works again, unless it was sent before the last failure.
    pub(crate) fn acknowledged(&self, sent: Instant) {
        if self.failed_at.get().is_some_and(|at| sent >= at) {
            self.works();
        }
    }

    pub fn reason(&self) -> Option<KafkaFailure> {
        self.reason.borrow().clone()
    }

    pub(crate) async fn opened(&self) {
        until(&self.changed, || self.is_open()).await;
    }

    pub(crate) async fn closed(&self) {
        until(&self.changed, || !self.is_open()).await;
    }
}

/// A lasting condition, such as an outage, a held topic or a run of rejected rows, from its first occurrence on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Episode {
    pub(crate) since: Instant,
    pub(crate) latest: Instant,
    pub times: u64,
}

impl Episode {
    fn begin() -> Episode {
        let now = Instant::now();
        Episode { since: now, latest: now, times: 1 }
    }

    fn again(&mut self) {
        self.latest = Instant::now();
        self.times += 1;
    }

    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// The time since its last occurrence.
    pub(crate) fn quiet(&self) -> Duration {
        self.latest.elapsed()
    }
}

/// The current conditions by key. Each is reported once when it begins and once when it ends.
#[derive(Debug, Default)]
pub struct Episodes<K>(BTreeMap<K, Episode>);

impl<K: Ord> Episodes<K> {
    /// Counts an occurrence. Returns true if it begins an episode, which the caller reports.
    pub fn begins(&mut self, key: K) -> bool {
        self.count(key) == 1
    }

    /// Counts an occurrence, and returns how many of its episode there are.
    pub(crate) fn count(&mut self, key: K) -> u64 {
        self.0.entry(key).and_modify(Episode::again).or_insert_with(Episode::begin).times
    }

    /// Ends the episodes for which `is_over` is true, and returns them in the order of their keys.
    pub fn end(&mut self, is_over: impl Fn(&K, &Episode) -> bool) -> Vec<(K, Episode)> {
        self.0.extract_if(.., |key, episode| is_over(key, episode)).collect()
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn an_outage_ends_when_it_is_over_for_every_task() {
        let outage = Availability::new("a test", "test");
        outage.failed(0, &"gone", "");
        outage.failed(1, &"gone", "");
        outage.worked(0);
        outage.worked(2);
        assert!(outage.lasts().is_some());
        outage.worked(1);
        assert!(outage.lasts().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_task_does_not_prolong_an_outage() {
        let outage = Availability::new("a test", "test");
        outage.failed(0, &"gone", "");
        outage.failed(1, &"gone", "");
        outage.needed_only_by(&[0]);
        outage.worked(0);
        assert!(outage.lasts().is_some(), "task 1 may still be working");
        outage.failed(0, &"gone", "");
        advance(IDLE_AFTER * 2).await;
        outage.needed_only_by(&[0]);
        assert!(outage.lasts().is_some(), "task 0 has not reported a success");
        outage.worked(0);
        assert!(outage.lasts().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn short_outages_are_not_reported_and_do_not_add_up() {
        let outage = Availability::lasting("a test", "test", IDLE_AFTER);
        let reported = || outage.outage.borrow().as_ref().is_some_and(|current| current.reported);
        outage.failed(0, &"locked", "");
        advance(IDLE_AFTER * 2).await;
        outage.failed(0, &"locked", "");
        assert!(!reported(), "the first outage is over");
        for _ in 0..5 {
            assert!(!reported());
            advance(IDLE_AFTER / 5).await;
            outage.failed(0, &"locked", "");
        }
        assert!(reported());
        outage.worked(0);
        assert!(!reported() && outage.lasts().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_failure_belongs_to_the_outage_that_has_ended() {
        let outage = Availability::new("a test", "test");
        let before = Instant::now();
        assert!(!outage.has_ended_since(before), "there was no outage");
        advance(Duration::from_secs(1)).await;
        outage.failed(0, &"gone", "");
        assert!(!outage.has_ended_since(before), "it lasts");
        outage.worked(0);
        assert!(outage.has_ended_since(before));
        assert!(!outage.has_ended_since(Instant::now()), "what begins now can fail by itself");
        outage.failed(0, &"gone again", "");
        assert!(!outage.has_ended_since(before), "the next one lasts");
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn an_episode_begins_once_and_counts_its_occurrences() {
        let mut episodes = Episodes::default();
        assert!(episodes.begins("a"));
        assert!(episodes.begins("b"), "another condition");
        advance(SECOND).await;
        assert!(!episodes.begins("a"));
        advance(SECOND).await;
        let ended = episodes.end(|key, _| *key == "a");
        assert_eq!(ended.len(), 1);
        let (key, episode) = ended[0];
        assert_eq!((key, episode.times), ("a", 2));
        assert_eq!((episode.age(), episode.quiet()), (SECOND * 2, SECOND));
        assert!(!episodes.contains(&"a") && episodes.contains(&"b"));
        assert!(episodes.begins("a"), "the next episode");
    }

    #[tokio::test(start_paused = true)]
    async fn episodes_end_in_the_order_of_their_keys() {
        let mut episodes = Episodes::default();
        for key in [3, 1, 2, 4] {
            episodes.begins(key);
        }
        let ended = episodes.end(|key, _| *key != 4);
        assert_eq!(ended.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(episodes.len(), 1);
    }
}
