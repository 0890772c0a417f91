//! The seeded world: chance, time and the faults, shared by the models of Postgres and Kafka.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// How likely each fault is, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// A statement fails, and the connection with it.
    pub postgres_breaks: u32,
    /// COMMIT is applied and its answer is lost.
    pub commit_answer_lost: u32,
    /// A produce request is refused with a retriable error.
    pub request_refused: u32,
    /// A produce request is stored and its answer is lost.
    pub request_answer_lost: u32,
    /// A row's settlement runs into somebody else's lock.
    pub row_locked: u32,
}

/// A world that breaks one rule which the relay relies on: the simulator must see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Lanes are given to whoever asks.
    NoLaneLock,
    /// The rows are read in the snapshot in which the lanes were locked.
    SnapshotOlderThanLock,
    /// Rows that somebody else has locked are skipped, and those behind them read.
    RowsSkipLocked,
    /// The fence sees no writer, so marks rise past ids that are still open.
    BlindFence,
    /// Marks stay when a hold ends.
    HoldsWithoutVersion,
    /// A producer goes on after a record was refused for good.
    GapsAfterRefusal,
    /// What was purged in flight counts as sent.
    PurgedCountsAsSent,
}

/// Chance and time.
pub struct World {
    /// The rule that is broken, if one is.
    pub sabotage: Option<Sabotage>,
    random: RefCell<fastrand::Rng>,
    /// What may go wrong now.
    pub faults: Cell<Faults>,
    frozen: RefCell<Vec<Instant>>,
    history: RefCell<Vec<String>>,
    begun: Instant,
}

impl World {
    /// The world of this seed.
    pub fn new(seed: u64, relays: usize, sabotage: Option<Sabotage>) -> Rc<World> {
        Rc::new(World {
            sabotage,
            random: RefCell::new(fastrand::Rng::with_seed(seed)),
            faults: Cell::new(Faults::default()),
            frozen: RefCell::new(vec![Instant::now(); relays]),
            history: RefCell::new(Vec::new()),
            begun: Instant::now(),
        })
    }

    /// A number below `bound`.
    pub fn below(&self, bound: u64) -> u64 {
        self.random.borrow_mut().u64(..bound)
    }

    /// True so many times in a thousand.
    pub fn happens(&self, thousandths: u32) -> bool {
        self.below(1_000) < u64::from(thousandths)
    }

    /// Whether this rule is broken.
    pub fn breaks(&self, rule: Sabotage) -> bool {
        self.sabotage == Some(rule)
    }

    /// A random source of its own, for a part of the relay.
    pub fn fork(&self) -> fastrand::Rng {
        self.random.borrow_mut().fork()
    }

    /// Lets up to so many milliseconds pass.
    pub async fn pass(&self, milliseconds: u64) {
        let microseconds = self.below(milliseconds * 1_000 + 1);
        sleep(Duration::from_micros(microseconds)).await;
    }

    /// Nothing of this relay moves for a while.
    pub fn freeze(&self, relay: usize, time: Duration) {
        self.frozen.borrow_mut()[relay] = Instant::now() + time;
        self.note(|| format!("relay {relay} is frozen for {time:?}"));
    }

    /// Waits as long as this relay is frozen.
    pub async fn thawed(&self, relay: usize) {
        loop {
            let until = self.frozen.borrow()[relay];
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }

    /// For whoever has to understand a failure.
    pub fn note(&self, line: impl FnOnce() -> String) {
        let at = self.begun.elapsed().as_micros();
        self.history.borrow_mut().push(format!("{at:>12} us  {}", line()));
    }

    /// The last lines of the history.
    pub fn history(&self, lines: usize) -> String {
        let history = self.history.borrow();
        history[history.len().saturating_sub(lines)..].join("\n")
    }
}
