//! The seeded world: chance, time and history, shared by the models of PostgreSQL and Kafka.
//!
//! Everything that happens is hashed, so that two runs of a seed can be compared. It becomes text only in a run that
//! records its history.

use super::plan::{Plan, Sabotage};
use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// Chance, time and history.
pub struct World {
    /// The plan of this schedule.
    pub plan: Plan,
    random: RefCell<fastrand::Rng>,
    /// Whether faults may happen. False before the first and after the last fault.
    stormy: Cell<bool>,
    hasher: RefCell<DefaultHasher>,
    history: Option<RefCell<Vec<String>>>,
    violation: RefCell<Option<String>>,
    /// Wakes tasks that wait until rows are settled or a promise is broken.
    pub progress: Notify,
    kafka_outage: Cell<bool>,
    claims_while_away: Cell<u32>,
    /// Counters for the outcome.
    pub count: Counters,
    pub begun: Instant,
}

/// What may cause duplicates, and how many times it happened.
#[derive(Default)]
pub struct Counters {
    /// Sessions, claims and relays that ended early. Each may duplicate up to a relay's rows in flight.
    pub interruptions: Cell<u32>,
    /// Settlements that a crash or a failover of PostgreSQL lost.
    pub settlements_lost: Cell<u32>,
    /// Holds that an operator deleted while one of several relays probed the topic.
    pub released_in_probe: Cell<u32>,
    /// Rows that an operator put back.
    pub put_back: Cell<u32>,
    /// The time from the last fault until everything was settled.
    pub settled_after: Cell<Duration>,
    /// The longest time from a commit until Kafka stored the event, in topics that were never away.
    pub slowest: Cell<Duration>,
    /// The longest time from the moment when Kafka stored an event until it was settled.
    pub settled_late: Cell<Duration>,
    /// The number of times that a relay was started.
    pub starts: Cell<u32>,
    /// The number of times that a topic was held because it was silent.
    pub stuck: Cell<u32>,
    /// The highest committed id, and the number of rows that were committed or put back later with a lower one.
    pub highest: Cell<i64>,
    pub late: Cell<u32>,
    /// Rows that flows have read.
    pub flowed: Cell<u32>,
    /// Rows that flows have recorded as sent before their settlement.
    pub recorded: Cell<u32>,
    /// Valid rows that were rejected because their topic refused every record.
    pub valid_rejected: Cell<u32>,
}

/// Adds to a counter.
pub fn add(counter: &Cell<u32>, more: u32) {
    counter.set(counter.get() + more);
}

impl World {
    /// The world of this seed.
    pub fn new(seed: u64, plan: Plan, with_history: bool) -> Rc<World> {
        Rc::new(World {
            plan,
            random: RefCell::new(fastrand::Rng::with_seed(seed)),
            stormy: Cell::new(false),
            hasher: RefCell::default(),
            history: with_history.then(RefCell::default),
            violation: RefCell::default(),
            progress: Notify::new(),
            kafka_outage: Cell::new(false),
            claims_while_away: Cell::new(0),
            count: Counters::default(),
            begun: Instant::now(),
        })
    }

    /// A number below `bound`.
    pub fn below(&self, bound: u64) -> u64 {
        self.random.borrow_mut().u64(..bound)
    }

    /// True with this probability, in thousandths.
    pub fn happens(&self, thousandths: u32) -> bool {
        thousandths > 0 && self.below(1_000) < u64::from(thousandths)
    }

    /// A fault: true with this probability, in thousandths, while faults may happen.
    pub fn fails(&self, thousandths: u32) -> bool {
        self.stormy.get() && self.happens(thousandths)
    }

    /// Sets whether faults may happen.
    pub fn set_stormy(&self, stormy: bool) {
        self.note(if stormy { "faults may happen" } else { "the last fault is over" }, stormy);
        self.stormy.set(stormy);
    }

    /// Whether this rule is broken.
    pub fn breaks(&self, rule: Sabotage) -> bool {
        self.plan.sabotage == Some(rule)
    }

    /// A separate random source for a part of the relay.
    pub fn fork(&self) -> fastrand::Rng {
        self.random.borrow_mut().fork()
    }

    /// Lets up to this many milliseconds pass.
    pub async fn pass(&self, milliseconds: u64) {
        sleep(self.up_to(milliseconds)).await;
    }

    /// A random duration of up to this many milliseconds.
    pub fn up_to(&self, milliseconds: u64) -> Duration {
        Duration::from_millis(self.below(milliseconds + 1))
    }

    /// Records an event.
    pub fn note(&self, what: &'static str, details: impl Hash + Debug) {
        let at = self.begun.elapsed().as_millis() as u64;
        let mut hasher = self.hasher.borrow_mut();
        (at, what, &details).hash(&mut *hasher);
        if let Some(history) = &self.history {
            history.borrow_mut().push(format!("{at:>8} ms  {what} {details:?}"));
        }
    }

    /// A promise was broken. The first one ends the schedule.
    pub fn violate(&self, promise: impl FnOnce() -> String) {
        let mut violation = self.violation.borrow_mut();
        if violation.is_none() {
            let promise = promise();
            self.note("A PROMISE IS BROKEN", &promise);
            *violation = Some(promise);
            self.progress.notify_waiters();
        }
    }

    /// Kafka becomes unavailable or available.
    pub fn kafka_is_unavailable(&self, away: bool) {
        self.kafka_outage.set(away);
        self.claims_while_away.set(0);
    }

    /// A claim has rows. While Kafka is unavailable, each worker finds that out once or twice and then claims nothing.
    pub fn rows_are_claimed(&self) {
        if !self.kafka_outage.get() {
            return;
        }
        add(&self.claims_while_away, 1);
        let (claims, interruptions) = (self.claims_while_away.get(), self.count.interruptions.get());
        if claims > (3 * self.plan.workers * self.plan.relays) as u32 + interruptions {
            self.violate(|| format!("{claims} claims while Kafka is unavailable"));
        }
    }

    /// The promise that was broken, if any.
    pub fn violation(&self) -> Option<String> {
        self.violation.borrow().clone()
    }

    /// A hash of everything that happened and of the state of the random source.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = self.hasher.borrow().clone();
        self.below(u64::MAX).hash(&mut hasher);
        hasher.finish()
    }

    /// The last lines of the history.
    pub fn history(&self, lines: usize) -> String {
        self.history.as_ref().map_or_else(String::new, |history| {
            let history = history.borrow();
            history[history.len().saturating_sub(lines)..].join("\n")
        })
    }
}
