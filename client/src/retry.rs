//! Trying again: exponential pauses with full jitter, within a time and a budget, and only where that is safe.
//!
//! What is to be tried again is a whole transaction, from its first statement: after an error Postgres takes nothing
//! but a rollback. Whether it may be tried again depends on what is known of the first attempt, its [`Verdict`]:
//!
//! - **It has definitely not happened** ([`Verdict::Again`]): a serialization failure, a deadlock, a lock that was not to
//!   be had. Trying again is always safe.
//! - **It is unknown whether it has happened** ([`Verdict::Unknown`]): the connection was lost, perhaps while the answer
//!   to COMMIT was on its way. Trying again may do it twice. [`Policy::run`] gives that back as [`Failure::Unknown`], a
//!   variant of its own; [`Keyed::run`] tries again, since it hands an idempotency key to each attempt.
//! - **Trying again changes nothing** ([`Verdict::Final`]).
//!
//! ```no_run
//! # #[cfg(all(feature = "idempotency", feature = "deadpool-postgres"))] mod example {
//! use deadpool_postgres::{Pool, PoolError};
//! use pg_outbox::idempotency::Key;
//! use pg_outbox::retry::{Classify, Failure, Policy, Verdict};
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
//!     let tx = client.transaction().await.map_err(Error::Postgres)?;
//!     // begin with the key, change, finish
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
//! The pause before attempt `n` is drawn evenly from nothing to `first_pause` times `2^(n-2)`, at most `longest_pause`.
//! Many callers that fail at once thus do not come back at once. A [`Budget`] that all calls to one database share keeps
//! them from multiplying its load while it is in trouble.

mod budget;
mod verdict;

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder, Retryable};
use thiserror::Error;
use tokio::time::Instant;

pub use budget::Budget;
pub use verdict::{Classify, RETRYABLE_SQLSTATES, Verdict};

/// How often, how long and how fast something is tried again.
#[derive(Debug, Clone)]
pub struct Policy {
    first_pause: Duration,
    longest_pause: Duration,
    attempts_max: u32,
    within: Duration,
    budget: Option<Budget>,
}

/// Up to 8 attempts within 10 s, the first pause of at most 20 ms and none of more than 2 s, without a budget.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// It would have changed nothing.
    Final,
    /// There were as many as there may be.
    Attempts,
    /// The next one would have begun too late.
    Time,
    /// The shared budget is used up.
    Budget,
}

/// What became of something that was tried.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Failure<E> {
    /// It has not happened.
    #[error("it failed, after {attempts} attempts")]
    GaveUp {
        /// The last error.
        #[source]
        error: E,
        /// How many attempts there were.
        attempts: u32,
        /// Why there was no further one.
        because: Because,
    },
    /// Nobody knows whether it has happened. Find out before it is done again, or have an idempotency key:
    /// [`Policy::keyed`].
    #[error("it is unknown whether it has happened, after {attempts} attempts")]
    Unknown {
        /// The last error.
        #[source]
        error: E,
        /// How many attempts there were.
        attempts: u32,
    },
}

impl Policy {
    /// With this longest pause before the second attempt; it doubles for each further one.
    pub fn first_pause(self, first_pause: Duration) -> Policy {
        Policy { first_pause, ..self }
    }

    /// With no pause longer than this.
    pub fn longest_pause(self, longest_pause: Duration) -> Policy {
        Policy { longest_pause, ..self }
    }

    /// With at most this many attempts, the first one included; 0 is 1.
    pub fn attempts_max(self, attempts_max: u32) -> Policy {
        Policy { attempts_max, ..self }
    }

    /// Begins no attempt later than this after the first one. One that is under way is not cut off, since its outcome
    /// would be unknown: give the statements a timeout.
    pub fn within(self, within: Duration) -> Policy {
        Policy { within, ..self }
    }

    /// Tries again only while this budget lasts.
    pub fn budget(self, budget: Budget) -> Policy {
        Policy { budget: Some(budget), ..self }
    }

    /// Does `work`, and again where that is safe for work that must not happen twice: after [`Verdict::Again`] only.
    ///
    /// # Errors
    ///
    /// [`Failure::Unknown`] at the first attempt whose outcome is unknown.
    pub async fn run<T, E, F, Work>(&self, work: F) -> Result<T, Failure<E>>
    where
        E: Classify,
        F: FnMut() -> Work,
        Work: Future<Output = Result<T, E>>,
    {
        self.attempt(work, |verdict| verdict == Verdict::Again).await
    }

    /// For work that is done once, however often it is asked for, thanks to this key: an `idempotency::Key`, or what a
    /// foreign system takes for one.
    pub fn keyed<K: ?Sized>(self, key: &K) -> Keyed<'_, K> {
        Keyed { policy: self, key }
    }

    async fn attempt<T, E, F, Work>(
        &self,
        mut work: F,
        again: impl Fn(Verdict) -> bool,
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
        let mut because = Because::Final;
        let counted = || {
            attempts.fetch_add(1, Ordering::Relaxed);
            work()
        };
        let tried = counted.retry(self.pauses()).when(|error: &E| again(error.verdict()));
        let tried = tried.adjust(|_, pause| {
            let Some(pause) = pause else {
                because = Because::Attempts;
                return None;
            };
            if begun.elapsed() + pause > self.within {
                because = Because::Time;
                return None;
            }
            if self.budget.as_ref().is_some_and(|budget| !budget.spend()) {
                because = Because::Budget;
                return None;
            }
            Some(pause)
        });
        let tried = tried.await;
        let attempts = attempts.load(Ordering::Relaxed);
        tried.map_err(|error| match error.verdict() {
            Verdict::Unknown => Failure::Unknown { error, attempts },
            _ => Failure::GaveUp { error, attempts, because },
        })
    }

    /// One for each attempt after the first.
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
#[derive(Debug)]
pub struct Keyed<'a, K: ?Sized> {
    policy: Policy,
    key: &'a K,
}

impl<'a, K: ?Sized> Keyed<'a, K> {
    /// Does `work` with the key, and again after [`Verdict::Again`] and [`Verdict::Unknown`].
    ///
    /// # Errors
    ///
    /// [`Failure::Unknown`] if the outcome of the last attempt was unknown: ask again later, with the same key.
    pub async fn run<T, E, F, Work>(&self, mut work: F) -> Result<T, Failure<E>>
    where
        E: Classify,
        F: FnMut(&'a K) -> Work,
        Work: Future<Output = Result<T, E>>,
    {
        self.policy.attempt(|| work(self.key), |verdict| verdict != Verdict::Final).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[derive(Debug)]
    struct Fault(Verdict);

    impl Classify for Fault {
        fn verdict(&self) -> Verdict {
            self.0
        }
    }

    /// Fails as the list says, then succeeds; notes when each attempt began.
    struct Script {
        faults: RefCell<Vec<Verdict>>,
        begun: Instant,
        at: RefCell<Vec<Duration>>,
    }

    impl Script {
        fn new(faults: &[Verdict]) -> Script {
            let faults = RefCell::new(faults.iter().rev().copied().collect());
            Script { faults, begun: Instant::now(), at: RefCell::default() }
        }

        #[allow(clippy::unused_async)] // stands for work that has something to wait for
        async fn attempt(&self) -> Result<&'static str, Fault> {
            self.at.borrow_mut().push(self.begun.elapsed());
            match self.faults.borrow_mut().pop() {
                Some(verdict) => Err(Fault(verdict)),
                None => Ok("done"),
            }
        }

        fn attempts(&self) -> usize {
            self.at.borrow().len()
        }
    }

    use Verdict::{Again, Final, Unknown};

    #[tokio::test(start_paused = true)]
    async fn what_has_not_happened_is_tried_again() {
        let script = Script::new(&[Again, Again]);
        assert!(matches!(Policy::default().run(|| script.attempt()).await, Ok("done")));
        assert_eq!(script.attempts(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_changes_nothing_is_not() {
        let script = Script::new(&[Final]);
        let failure = Policy::default().run(|| script.attempt()).await.unwrap_err();
        assert!(
            matches!(failure, Failure::GaveUp { attempts: 1, because: Because::Final, .. }),
            "{failure:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_outcome_is_tried_again_with_a_key_only() {
        let script = Script::new(&[Again, Unknown]);
        let failure = Policy::default().run(|| script.attempt()).await.unwrap_err();
        assert!(matches!(failure, Failure::Unknown { attempts: 2, .. }), "{failure:?}");
        assert_eq!(script.attempts(), 2);

        let script = Script::new(&[Again, Unknown]);
        let keys = RefCell::new(Vec::new());
        let work = |key| {
            keys.borrow_mut().push(key);
            script.attempt()
        };
        assert!(matches!(Policy::default().keyed("k").run(work).await, Ok("done")));
        assert_eq!(*keys.borrow(), ["k"; 3]);

        let script = Script::new(&[Unknown; 9]);
        let policy = Policy::default().attempts_max(3);
        let failure = policy.keyed("k").run(|_| script.attempt()).await.unwrap_err();
        assert!(matches!(failure, Failure::Unknown { attempts: 3, .. }), "{failure:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_up_to_the_longest_and_are_drawn_from_the_whole_range() {
        let policy = Policy::default().attempts_max(12).within(Duration::MAX);
        let (mut shortest, mut longest) = ([1.0_f64; 11], [0.0_f64; 11]);
        for _ in 0..300 {
            let script = Script::new(&[Again; 12]);
            let failure = policy.run(|| script.attempt()).await.unwrap_err();
            assert!(matches!(failure, Failure::GaveUp { attempts: 12, because: Because::Attempts, .. }));
            let at = script.at.borrow();
            for (n, pair) in at.windows(2).enumerate() {
                let most = (0.02 * 2_f64.powi(n as i32)).min(2.0);
                let share = (pair[1] - pair[0]).as_secs_f64() / most;
                assert!(share <= 1.1, "pause {n} was {share} of the longest"); // the clock ticks in milliseconds
                shortest[n] = shortest[n].min(share);
                longest[n] = longest[n].max(share);
            }
        }
        assert!(shortest.iter().all(|share| *share < 0.2), "{shortest:?}");
        assert!(longest.iter().all(|share| *share > 0.8), "{longest:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn no_attempt_begins_after_the_time() {
        let within = Duration::from_millis(300);
        for _ in 0..50 {
            let script = Script::new(&[Again; 100]);
            let policy = Policy::default().attempts_max(100).within(within);
            let failure = policy.run(|| script.attempt()).await.unwrap_err();
            assert!(matches!(failure, Failure::GaveUp { because: Because::Time, .. }), "{failure:?}");
            let at = script.at.borrow();
            assert!(at.len() > 2 && at.iter().all(|at| *at <= within + Duration::from_millis(1)), "{at:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_budget_that_is_used_up_ends_the_trying_of_all() {
        let policy = Policy::default().budget(Budget::new(3));
        let mut attempts = 0;
        for _ in 0..20 {
            let script = Script::new(&[Again; 100]);
            let failure = policy.run(|| script.attempt()).await.unwrap_err();
            assert!(matches!(failure, Failure::GaveUp { because: Because::Budget, .. }), "{failure:?}");
            attempts += script.attempts();
        }
        // 20 first ones, 3 at once, and one more when ten of the calls that found it empty have earned it.
        assert_eq!(attempts, 20 + 3 + 1);
    }
}
