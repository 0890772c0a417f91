//! Holds: topics whose rows wait, the probes that end holds, and pauses. They are rows of the database, which claims check in their
//! own statement. What this relay remembers of them is for the log and the metrics.

pub(crate) mod flight;
pub mod prober;

use crate::health::LOCKS_PATIENCE;
use crate::health::availability::{Episode, Episodes, rounded};
use crate::outbox::TopicHold;
use crate::reason::{self, STUCK};
use crate::{Event, FaultKind, Lane, PostgresFault, Settlement, Stats};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// The holds. They are rows in the database, so all relays agree on them.
pub trait Holds {
    async fn count(&mut self) -> Result<Waiting, PostgresFault>;
    /// A sample of the pauses, for the log.
    async fn pauses(&mut self) -> Result<Vec<Pause>, PostgresFault>;
    /// A sample of the held topics with their reasons, for the log and the metrics.
    async fn held(&mut self) -> Result<Vec<(String, String)>, PostgresFault>;
    /// Leases up to `most` topics that are due for a probe and not paused. No other relay gets them during [`LEASE`].
    async fn due(&mut self, most: usize) -> Result<Vec<Due>, PostgresFault>;
    /// A row to probe each of these topics with, in their order. `None` if no row waits for the topic.
    async fn examples(&mut self, due: &[Due]) -> Result<Vec<Option<ExampleRow>>, PostgresFault>;
    async fn release(&mut self, topics: &[&str]) -> Result<(), PostgresFault>;
    /// Schedules the next probe of these topics with backoff.
    async fn postpone(&mut self, failed: &[Failed<'_>]) -> Result<(), PostgresFault>;
    /// Schedules the next probe of these topics soon, because the last one had no result.
    async fn retry_soon(&mut self, topics: &[&str]) -> Result<(), PostgresFault>;
    async fn renew_leases(&mut self, topics: &[&str]) -> Result<(), PostgresFault>;
    /// Makes due every topic that this relay has postponed and no other relay has leased since.
    async fn make_due(&mut self) -> Result<(), PostgresFault>;
    /// The ids of those of these rows that are unsent.
    async fn unsent(&mut self, ids: &[i64], event_ids: &[Uuid]) -> Result<HashSet<i64>, PostgresFault>;
}

/// How long a due topic belongs to the relay that probes it. If that relay dies, another one probes it afterwards.
pub const LEASE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Failed<'a> {
    pub topic: &'a str,
    /// Replaces the recorded reason, if set.
    pub reason: Option<&'static str>,
    pub error: &'a str,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    pub topics: i64,
    pub keys: i64,
    pub paused: Counts,
    /// The version of the set of holds, blocked keys and pauses.
    pub hold_version: i64,
}

impl Waiting {
    pub fn is_empty(&self) -> bool {
        self.topics + self.keys + self.paused.total() == 0
    }
}

#[derive(Clone, Debug)]
pub struct Due {
    pub topic: String,
    pub reason: String,
}

#[derive(Clone, Debug)]
pub struct ExampleRow {
    pub lane: Lane,
    /// The row. The probe sends the first unsent row of its key.
    pub id: i64,
    /// The key, if it is not too long.
    pub key: Option<Vec<u8>>,
}

/// How long a relay remembers that a topic was stuck: longer than a session waits for its rows.
const STUCK_FOR: Duration = Duration::from_secs(3_600);

#[derive(Default)]
pub(crate) struct KnownHolds {
    /// The topics that were reported as held. Several workers may detect the same fault, and another relay or an operator may end
    /// a hold.
    reported: RefCell<Episodes<String>>,
    /// The topics that this relay has recently held because a partition was silent, and when.
    stuck: RefCell<HashMap<String, Instant>>,
    /// Until when settlements that record something else leave out holds and blocked keys.
    left_out_until: Cell<Option<Instant>>,
}

impl KnownHolds {
    /// Removes holds and blocked keys from the settlement if recording them failed recently. Recording them updates the row
    /// with the version of the set. An operator's open transaction may keep that row locked, and acknowledged rows must not
    /// wait for it. The rows concerned stay unsent, and a later batch decides about them again.
    pub(crate) fn leave_out<E>(&self, settlement: &mut Settlement<'_, E>) {
        let leaves_out = self.left_out_until.get().is_some_and(|until| until > Instant::now());
        if leaves_out && !(settlement.sent.is_empty() && settlement.rejected.is_empty()) {
            settlement.held.clear();
            settlement.blocked.clear();
        }
    }

    /// Records that this relay has released the topic, and logs it.
    pub(crate) fn released(&self, topic: &str) {
        let reported = self.reported.borrow_mut().end(|held, _| held == topic).pop();
        log_released(topic, reported.map(|(_, hold)| hold.age()));
    }

    /// `held` has all topics that were held at some time after `asked`. Ends the other holds that began before `asked`, and logs that
    /// another relay or an operator has released them.
    pub(crate) fn only(&self, asked: Instant, held: &[(String, String)]) {
        for (topic, hold) in self.gone(asked, held) {
            log_released(&topic, Some(hold.age()));
        }
    }

    fn gone(&self, asked: Instant, held: &[(String, String)]) -> Vec<(String, Episode)> {
        let is_held = |topic: &String| held.iter().any(|(held_topic, _)| held_topic == topic);
        self.reported.borrow_mut().end(|topic, hold| hold.since < asked && !is_held(topic))
    }

    /// Whether a worker of this relay has held this topic as stuck since this time.
    pub(crate) fn is_stuck_since(&self, topic: &str, time: Instant) -> bool {
        self.stuck.borrow().get(topic).is_some_and(|at| *at >= time)
    }

    /// Records that a settlement failed, perhaps because of another session's lock on the version of the set of holds.
    pub(crate) fn not_settled<E>(&self, settlement: &Settlement<'_, E>, fault: &PostgresFault) {
        let holds = !settlement.held.is_empty() || !settlement.blocked.is_empty();
        if holds && fault.kind == FaultKind::Contended {
            self.left_out_until.set(Some(Instant::now() + LOCKS_PATIENCE));
        }
    }

    /// Reports a recorded hold, if it is the first of its topic.
    pub(crate) fn recorded<E: Event>(&self, TopicHold { topic, why, .. }: &TopicHold<'_, E>, stats: &Stats) {
        if why.reason == STUCK.word {
            let mut stuck = self.stuck.borrow_mut();
            stuck.retain(|_, at| at.elapsed() < STUCK_FOR);
            stuck.insert((*topic).to_owned(), Instant::now());
        }
        if !self.reported.borrow_mut().begins((*topic).to_owned()) {
            tracing::debug!(topic, reason = why.reason, "topic already held: {}", why.error);
            return;
        }
        stats.holds.inc();
        tracing::warn!(
            code = "topic_held",
            topic,
            reason = why.reason,
            "topic held: {}. Other topics continue. {}",
            why.error,
            reason::fix(reason::remedy(why.reason))
        );
    }
}

/// The maximum number of pauses that the log names.
pub const PAUSES_NAMED_MAX: usize = 100;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub everything: i64,
    pub topics: i64,
    pub keys: i64,
}

impl Counts {
    pub fn total(self) -> i64 {
        self.everything + self.topics + self.keys
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    pub id: i64,
    /// `topic NAME`, or `a key of TYPE` without the key, which may be personal data. `None` for everything.
    pub scope: Option<String>,
    pub reason: Option<String>,
}

/// Logs which pauses have begun and ended since those that were logged before.
pub(crate) fn log_pauses<'a>(before: &'a [Pause], now: &'a [Pause]) {
    let scope_of = |pause: &'a Pause| pause.scope.as_deref().unwrap_or("everything");
    for ended in without(before, now) {
        let (pause, scope) = (ended.id, scope_of(ended));
        tracing::info!(code = "resumed", pause, scope, "resumed {scope}");
    }
    for begun in without(now, before) {
        let (pause, scope) = (begun.id, scope_of(begun));
        let reason = begun.reason.as_deref().unwrap_or("no reason given");
        let others = if begun.scope.is_none() { "" } else { "; other events continue" };
        tracing::warn!(
            code = "paused",
            pause,
            scope,
            reason,
            "paused {scope} ({reason}){others}. To resume, run `outbox-relay resume` with the same scope. To list \
             all pauses, run `outbox-relay status`"
        );
    }
}

fn without<'a>(pauses: &'a [Pause], others: &[Pause]) -> Vec<&'a Pause> {
    pauses.iter().filter(|pause| others.iter().all(|other| other.id != pause.id)).collect()
}

fn log_released(topic: &str, lasted: Option<Duration>) {
    let seconds = lasted.map(rounded);
    tracing::info!(code = "topic_released", topic, seconds, "topic released, publishing resumed");
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_hold_is_reported_once_by_several_workers_and_ends_once() {
        let holds = KnownHolds::default();
        let begins = |topic: &str| holds.reported.borrow_mut().begins(topic.to_owned());
        let gone = |asked, held: &[(String, String)]| {
            let gone = holds.gone(asked, held).into_iter();
            gone.map(|(topic, hold)| (topic, hold.age())).collect::<Vec<_>>()
        };
        let second = Duration::from_secs(1);
        assert!(begins("a"));
        assert!(begins("b"));
        advance(second).await;
        assert!(!begins("b"), "another worker detects it");
        let asked = Instant::now();
        assert_eq!(
            gone(asked, &[("a".to_owned(), "stuck".to_owned())]),
            [("b".to_owned(), second)],
            "another relay or an operator has ended it"
        );
        holds.released("a");
        assert!(begins("a"), "the next hold is another one");
        assert_eq!(gone(asked, &[]), [], "the query was sent before the hold began");
    }

    #[test]
    fn only_pauses_that_began_or_ended_are_reported() {
        let pause = |id| Pause { id, scope: None, reason: None };
        let (before, after) = ([pause(1), pause(2)], [pause(2), pause(3)]);
        assert_eq!(without(&before, &after), [&before[0]]);
        assert_eq!(without(&after, &before), [&after[1]]);
    }
}
