//! The seeded world: chance, time and what happened, shared by the models of Postgres and Kafka.
//!
//! Everything that happens is hashed, so that two runs of a seed can be compared. It becomes text only in a run whose
//! history somebody wants to read.

use super::plan::{Plan, Sabotage};
use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// Chance, time and what happened.
pub struct World {
    /// What this schedule is made of.
    pub plan: Plan,
    random: RefCell<fastrand::Rng>,
    /// Faults happen now. Off before the first and after the last.
    stormy: Cell<bool>,
    hasher: RefCell<DefaultHasher>,
    history: Option<RefCell<Vec<String>>>,
    violation: RefCell<Option<String>>,
    /// Wakes whoever waits for rows to be settled, or for a promise to break.
    pub progress: Notify,
    kafka_away: Cell<bool>,
    claims_while_away: Cell<u32>,
    /// What was counted on the way.
    pub count: Counters,
    begun: Instant,
}

/// What may cost duplicates, and how often it happened.
#[derive(Default)]
pub struct Counters {
    /// A session, a claim or a relay ended before its time: up to a relay's rows in flight each.
    pub interruptions: Cell<u32>,
    /// Settlements of rows that a crash or a failover of Postgres lost.
    pub settlements_lost: Cell<u32>,
    /// Holds that an operator deleted while one of several relays probed the topic.
    pub lifted_in_probe: Cell<u32>,
    /// Rows that an operator put back.
    pub put_back: Cell<u32>,
    /// From the last fault until everything was settled.
    pub settled_after: Cell<Duration>,
    /// How many times a relay was started.
    pub starts: Cell<u32>,
    /// How many times a topic was held since it was silent.
    pub stuck: Cell<u32>,
    /// Innocent rows that were found guilty, since their topic refused whatever came.
    pub wronged: Cell<u32>,
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
            kafka_away: Cell::new(false),
            claims_while_away: Cell::new(0),
            count: Counters::default(),
            begun: Instant::now(),
        })
    }

    /// A number below `bound`.
    pub fn below(&self, bound: u64) -> u64 {
        self.random.borrow_mut().u64(..bound)
    }

    /// True so many times in a thousand.
    pub fn happens(&self, thousandths: u32) -> bool {
        thousandths > 0 && self.below(1_000) < u64::from(thousandths)
    }

    /// A fault: true so many times in a thousand while faults happen.
    pub fn fails(&self, thousandths: u32) -> bool {
        self.stormy.get() && self.happens(thousandths)
    }

    /// Whether faults happen from now on.
    pub fn set_stormy(&self, stormy: bool) {
        self.note(if stormy { "faults may happen" } else { "the last fault is over" }, stormy);
        self.stormy.set(stormy);
    }

    /// Whether this rule is broken.
    pub fn breaks(&self, rule: Sabotage) -> bool {
        self.plan.sabotage == Some(rule)
    }

    /// A random source of its own, for a part of the relay.
    pub fn fork(&self) -> fastrand::Rng {
        self.random.borrow_mut().fork()
    }

    /// Lets up to so many milliseconds pass.
    pub async fn pass(&self, milliseconds: u64) {
        sleep(self.up_to(milliseconds)).await;
    }

    /// Up to so many milliseconds.
    pub fn up_to(&self, milliseconds: u64) -> Duration {
        Duration::from_millis(self.below(milliseconds + 1))
    }

    /// Something happened.
    pub fn note(&self, what: &'static str, details: impl Hash + Debug) {
        let at = self.begun.elapsed().as_millis() as u64;
        let mut hasher = self.hasher.borrow_mut();
        (at, what, &details).hash(&mut *hasher);
        if let Some(history) = &self.history {
            history.borrow_mut().push(format!("{at:>8} ms  {what} {details:?}"));
        }
    }

    /// A promise broke: the first one ends the schedule.
    pub fn violate(&self, promise: impl FnOnce() -> String) {
        let mut violation = self.violation.borrow_mut();
        if violation.is_none() {
            let promise = promise();
            self.note("A PROMISE BREAKS", &promise);
            *violation = Some(promise);
            self.progress.notify_waiters();
        }
    }

    /// Kafka goes away or comes back.
    pub fn kafka_is_away(&self, away: bool) {
        self.kafka_away.set(away);
        self.claims_while_away.set(0);
    }

    /// A claim has rows. While Kafka is away each worker finds that out once or twice, and then claims nothing.
    pub fn rows_are_claimed(&self) {
        if !self.kafka_away.get() {
            return;
        }
        add(&self.claims_while_away, 1);
        let (claims, interruptions) = (self.claims_while_away.get(), self.count.interruptions.get());
        if claims > (3 * self.plan.workers * self.plan.relays) as u32 + interruptions {
            self.violate(|| format!("{claims} claims while Kafka is away"));
        }
    }

    /// The promise that broke, if one did.
    pub fn violation(&self) -> Option<String> {
        self.violation.borrow().clone()
    }

    /// A hash of all that happened and of the chance that is left.
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
