//! Retries: exponential backoff with full jitter, within a time limit and a budget, and only if a retry is safe.
//!
//! Retry a whole transaction, because after an error PostgreSQL accepts only a rollback. The [`Verdict`] of the failed attempt
//! determines whether a retry is safe:
//!
//! - **The attempt had no effect** ([`Verdict::Again`]): a serialization failure, a deadlock, a lock timeout. A retry is
//!   always safe.
//! - **The outcome is unknown** ([`Verdict::Unknown`]): the connection was lost, perhaps during COMMIT. A retry may repeat the
//!   effect. [`Policy::run`] returns [`Failure::Unknown`]. [`Keyed::run`] retries, because each attempt has the same
//!   idempotency key. Begin the request in each attempt, because a guard of an earlier attempt does not know the outcome.
//! - **A retry would fail too** ([`Verdict::Final`]).
//!
//! ```no_run
//! # #[cfg(feature = "deadpool-postgres")] mod example {
//! use deadpool_postgres::{Pool, PoolError};
//! use pg_idempotency::idempotency::Key;
//! use pg_idempotency::retry::{Classify, Failure, Policy, Verdict};
//!
//! enum Error {
//!     Pool(PoolError),
//!     Postgres(tokio_postgres::Error),
//! }
//!
//! impl Classify for Error {
//!     fn verdict(&self) -> Verdict {
//!         match self {
//!             Error::Pool(_) => Verdict::Again, // no statement was sent yet
//!             Error::Postgres(error) => error.verdict(),
//!         }
//!     }
//! }
//!
//! async fn transfer(pool: &Pool, key: &Key) -> Result<(), Error> {
//!     let mut client = pool.get().await.map_err(Error::Pool)?;
//!     // begin with the key
//!     let tx = client.transaction().await.map_err(Error::Postgres)?;
//!     // change, finish
//! #   let _ = key;
//!     tx.commit().await.map_err(Error::Postgres)
//! }
//!
//! async fn example(pool: &Pool, key: &Key) -> Result<(), Failure<Error>> {
//!     Policy::default().keyed(key).run(|key| transfer(pool, key)).await
//! }
//! # }
//! ```
//!
//! With a synchronous driver, use [`Policy::run_blocking`] or [`Keyed::run_blocking`], which need no runtime:
//!
//! ```no_run
//! # #[cfg(feature = "postgres")] mod example {
//! use pg_idempotency::retry::{Classify, Failure, Policy, Verdict};
//! use pg_outbox::{Event, block_on, enqueue};
//!
//! enum Error {
//!     Outbox(pg_outbox::Error),
//!     Postgres(postgres::Error),
//! }
//!
//! impl Classify for Error {
//!     fn verdict(&self) -> Verdict {
//!         match self {
//!             Error::Outbox(error) => error.verdict(),
//!             Error::Postgres(error) => error.verdict(),
//!         }
//!     }
//! }
//!
//! fn place_order(client: &mut postgres::Client) -> Result<(), Error> {
//!     let mut tx = client.transaction().map_err(Error::Postgres)?;
//!     tx.execute("INSERT INTO shop_order (id) VALUES (1)", &[]).map_err(Error::Postgres)?;
//!     block_on(enqueue(&mut tx, Event::new("order", 1, "OrderPlaced").tombstone())).map_err(Error::Outbox)?;
//!     tx.commit().map_err(Error::Postgres)
//! }
//!
//! fn example(client: &mut postgres::Client) -> Result<(), Failure<Error>> {
//!     Policy::default().run_blocking(|| place_order(client))
//! }
//! # }
//! ```
//!
//! The pause before attempt `n` is random, up to `first_pause` times `2^(n-2)` and at most `longest_pause`, so that callers
//! that fail together do not retry together. A [`Budget`] that all calls to a database share prevents retries from
//! multiplying its load during an outage.

mod verdict;

use std::fmt;
use std::future::{Future, Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder, Retryable, Sleeper, TokioSleeper};
use pg_outbox::block_on;
use thiserror::Error;
use tokio::time::Instant;

pub use verdict::{Classify, RETRYABLE_SQLSTATES, Verdict};

/// How often and how long to retry, and the pauses.
///
/// ```no_run
/// use std::time::Duration;
/// use pg_idempotency::retry::{Budget, Classify, Failure, Policy};
///
/// /// One for all callers of a database.
/// fn policy(budget: &Budget) -> Policy {
///     Policy::default()
///         .first_pause(Duration::from_millis(10))
///         .longest_pause(Duration::from_secs(1))
///         .attempts_max(5)
///         .within(Duration::from_secs(3))
///         .budget(budget.clone())
/// }
///
/// async fn save<E: Classify>(policy: &Policy, work: impl AsyncFn() -> Result<(), E>) -> Result<(), Failure<E>> {
///     policy.run(|| work()).await
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Policy {
    first_pause: Duration,
    longest_pause: Duration,
    attempts_max: u32,
    within: Duration,
    budget: Option<Budget>,
}

/// Up to 8 attempts within 10 s, pauses of at most 20 ms at first and 2 s later, and no budget.
impl Default for Policy {
    fn default() -> Policy {
        Policy {
            first_pause: Duration::from_millis(20),
            longest_pause: Duration::from_secs(2),
            attempts_max: 8,
            within: Duration::from_secs(10),
            budget: None,
        }
    }
}

/// Why there was no further attempt.
///
/// ```
/// use pg_idempotency::retry::{Failure, StopReason};
///
/// fn is_an_outage<E>(failure: &Failure<E>) -> bool {
///     matches!(failure, Failure::GaveUp { reason: StopReason::Time | StopReason::Budget, .. })
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// It would have failed too.
    Final,
    /// The maximum number of attempts was reached.
    Attempts,
    /// The next attempt would have begun too late.
    Time,
    /// The shared budget is used up.
    Budget,
}

/// Why an operation failed.
///
/// ```
/// use pg_idempotency::retry::Failure;
///
/// /// What an API answers.
/// fn status<E>(failure: &Failure<E>) -> u16 {
///     match failure {
///         Failure::GaveUp { .. } => 503,
///         _ => 500, // the outcome is unknown
///     }
/// }
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Failure<E> {
    /// It had no effect.
    #[error("the operation failed after {}", Attempts(*attempts))]
    GaveUp {
        /// The last error.
        #[source]
        error: E,
        /// The number of attempts.
        attempts: u32,
        /// Why there was no further attempt.
        reason: StopReason,
    },
    /// It may have had its effect. Check before you repeat it, or use an idempotency key: [`Policy::keyed`].
    #[error("the outcome of the operation is unknown after {}", Attempts(*attempts))]
    Unknown {
        /// The last error.
        #[source]
        error: E,
        /// The number of attempts.
        attempts: u32,
    },
}

/// A number of attempts, as text.
struct Attempts(u32);

impl fmt::Display for Attempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.0 == 1 { "" } else { "s" };
        write!(f, "{} attempt{plural}", self.0)
    }
}

impl Policy {
    /// Sets the longest pause before the second attempt. It doubles for each further attempt.
    pub fn first_pause(self, first_pause: Duration) -> Policy {
        Policy { first_pause, ..self }
    }

    /// Sets the longest pause before any attempt.
    pub fn longest_pause(self, longest_pause: Duration) -> Policy {
        Policy { longest_pause, ..self }
    }

    /// Sets the maximum number of attempts, including the first one. 0 means 1.
    pub fn attempts_max(self, attempts_max: u32) -> Policy {
        Policy { attempts_max, ..self }
    }

    /// Sets the time limit, after which no attempt begins. It does not interrupt an attempt, because the outcome would be
    /// unknown. Set a timeout for the statements.
    pub fn within(self, within: Duration) -> Policy {
        Policy { within, ..self }
    }

    /// Retries only while this budget lasts.
    pub fn budget(self, budget: Budget) -> Policy {
        Policy { budget: Some(budget), ..self }
    }

    /// Runs `work`, and retries it only after [`Verdict::Again`], so that its effect cannot happen twice.
    ///
    /// # Errors
    ///
    /// [`Failure::Unknown`] after the first attempt with an unknown outcome, else [`Failure::GaveUp`].
    pub async fn run<T, E, F, Work>(&self, work: F) -> Result<T, Failure<E>>
    where
        E: Classify,
        F: FnMut() -> Work,
        Work: Future<Output = Result<T, E>>,
    {
        self.attempt(work, |verdict| verdict == Verdict::Again, TokioSleeper).await
    }

    /// The same for synchronous work. It needs no runtime, and blocks the thread during the pauses.
    ///
    /// # Errors
    ///
    /// See [`Policy::run`].
    pub fn run_blocking<T, E, F>(&self, mut work: F) -> Result<T, Failure<E>>
    where
        E: Classify,
        F: FnMut() -> Result<T, E>,
    {
        block_on(self.attempt(|| ready(work()), |verdict| verdict == Verdict::Again, sleep))
    }

    /// For work that this key makes idempotent: an `idempotency::Key`, or the idempotency key of an external system.
    pub fn keyed<K: ?Sized>(self, key: &K) -> Keyed<'_, K> {
        Keyed { policy: self, key }
    }

    async fn attempt<T, E, F, Work>(
        &self,
        mut work: F,
        again: impl Fn(Verdict) -> bool,
        sleeper: impl Sleeper,
    ) -> Result<T, Failure<E>>
    where
        E: Classify,
        F: FnMut() -> Work,
        Work: Future<Output = Result<T, E>>,
    {
        let begun = Instant::now();
        if let Some(budget) = &self.budget {
            budget.earn();
        }
        let attempts = AtomicU32::new(0);
        // An attempt may have had an effect, whatever a later one reports.
        let is_unknown = AtomicBool::new(false);
        let mut reason = StopReason::Final;
        let counted = || {
            attempts.fetch_add(1, Ordering::Relaxed);
            work()
        };
        let retried = counted.retry(self.pauses()).when(|error: &E| {
            let verdict = error.verdict();
            is_unknown.fetch_or(verdict == Verdict::Unknown, Ordering::Relaxed);
            again(verdict)
        });
        let retried = retried.adjust(|_, pause| {
            let Some(pause) = pause else {
                reason = StopReason::Attempts;
                return None;
            };
            if begun.elapsed() + pause > self.within {
                reason = StopReason::Time;
                return None;
            }
            if self.budget.as_ref().is_some_and(|budget| !budget.spend()) {
                reason = StopReason::Budget;
                return None;
            }
            Some(pause)
        });
        let result = retried.sleep(sleeper).await;
        let attempts = attempts.load(Ordering::Relaxed);
        result.map_err(|error| match is_unknown.load(Ordering::Relaxed) {
            true => Failure::Unknown { error, attempts },
            false => Failure::GaveUp { error, attempts, reason },
        })
    }

    /// One pause for each attempt after the first.
    fn pauses(&self) -> impl BackoffBuilder + use<> {
        let longest_pause = self.longest_pause;
        ExponentialBuilder::default()
            .with_min_delay(self.first_pause)
            .with_max_delay(longest_pause)
            .with_factor(2.0)
            .with_max_times(self.attempts_max.saturating_sub(1) as usize)
            .build()
            .map(move |most| most.min(longest_pause).mul_f64(fastrand::f64()))
    }
}

/// A [`Policy`] for work with an idempotency key.
///
/// ```no_run
/// use pg_idempotency::retry::{Failure, Policy, Verdict};
///
/// struct LostConnection;
///
/// impl pg_idempotency::retry::Classify for LostConnection {
///     fn verdict(&self) -> Verdict {
///         Verdict::Unknown
///     }
/// }
///
/// fn pay(key: &str) -> Result<(), LostConnection> {
///     # let _ = key;
///     Err(LostConnection) // the server recognizes a second attempt by its key
/// }
///
/// fn example() -> Result<(), Failure<LostConnection>> {
///     Policy::default().keyed("8e03978e-40d5").run_blocking(pay)
/// }
/// ```
#[derive(Debug)]
pub struct Keyed<'a, K: ?Sized> {
    policy: Policy,
    key: &'a K,
}

impl<'a, K: ?Sized> Keyed<'a, K> {
    /// Runs `work` with the key, and retries it after [`Verdict::Again`] and [`Verdict::Unknown`].
    ///
    /// # Errors
    ///
    /// [`Failure::Unknown`] if the outcome of an attempt is unknown, even if a later one failed: retry later with the same key.
    /// Otherwise [`Failure::GaveUp`].
    pub async fn run<T, E, F, Work>(&self, mut work: F) -> Result<T, Failure<E>>
    where
        E: Classify,
        F: FnMut(&'a K) -> Work,
        Work: Future<Output = Result<T, E>>,
    {
        self.policy.attempt(|| work(self.key), |verdict| verdict != Verdict::Final, TokioSleeper).await
    }

    /// The same for synchronous work. It needs no runtime, and blocks the thread during the pauses.
    ///
    /// # Errors
    ///
    /// See [`Keyed::run`].
    pub fn run_blocking<T, E, F>(&self, mut work: F) -> Result<T, Failure<E>>
    where
        E: Classify,
        F: FnMut(&'a K) -> Result<T, E>,
    {
        block_on(self.policy.attempt(|| ready(work(self.key)), |verdict| verdict != Verdict::Final, sleep))
    }
}

/// The cost of a retry. A call earns 1.
const RETRY: u32 = 10;

/// Limits the retries of all calls to one service: a burst, then one retry per ten calls. Clones share the budget.
///
/// Normally, retries are rare and the budget is full. During an outage, retries add a tenth to the load instead of multiplying
/// it.
///
/// ```
/// use pg_idempotency::retry::{Budget, Policy};
///
/// let budget = Budget::new(10); // up to 10 retries at once
/// let policy = Policy::default().budget(budget.clone());
/// ```
#[derive(Debug, Clone)]
pub struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    balance: AtomicU32,
    most: u32,
}

impl Budget {
    /// A full budget with this burst of retries.
    pub fn new(burst: u16) -> Budget {
        let most = u32::from(burst) * RETRY;
        Budget(Arc::new(Account { balance: AtomicU32::new(most), most }))
    }

    fn earn(&self) {
        let Account { balance, most } = &*self.0;
        // Fails if the budget is full.
        let _ = balance
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| (now < *most).then_some(now + 1));
    }

    /// Takes the cost of a retry. Returns false if the budget is used up.
    fn spend(&self) -> bool {
        let balance = &self.0.balance;
        balance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| now.checked_sub(RETRY)).is_ok()
    }
}

/// Sleeps before it returns.
fn sleep(pause: Duration) -> Ready<()> {
    std::thread::sleep(pause);
    ready(())
}

#[cfg(test)]
mod tests;
