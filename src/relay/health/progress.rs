//! Whether the cycle goes on: the scout comes round, and each worker that has lanes in hand takes one step after the other.
//!
//! A step is counted by whoever takes it, never by a clock. Waiting for a server is a row of steps: every such wait ends, by
//! an answer, by a sign of life to Postgres, or by its timeout.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// The scout is party 0, workers count from 1; there are 64 at most.
const PARTIES: usize = 65;
const SCOUT: usize = 0;

/// The steps of the scout and the workers.
pub struct Progress {
    parties: [Party; PARTIES],
    stepped: Notify,
}

#[derive(Default)]
struct Party {
    /// It has something in hand.
    busy: AtomicBool,
    /// It has taken a step since it was last looked at.
    stepped: AtomicBool,
}

impl Progress {
    /// Nobody is busy.
    pub(crate) fn new() -> Progress {
        Progress { parties: std::array::from_fn(|_| Party::default()), stepped: Notify::new() }
    }

    /// The scout has taken a step. It is busy from the first one on.
    pub(crate) fn scouted(&self) {
        self.step(SCOUT);
    }

    /// Runs a cycle of this worker, which is busy meanwhile. Each time something happens to the cycle, an answer or the end of
    /// a wait, counts as a step: one that is never woken again takes none.
    pub(crate) async fn of<T>(&self, worker: usize, cycle: impl Future<Output = T>) -> T {
        let mut cycle = pin!(cycle);
        let done = poll_fn(|context| {
            self.step(worker);
            cycle.as_mut().poll(context)
        })
        .await;
        if let Some(party) = self.parties.get(worker) {
            party.busy.store(false, Ordering::Relaxed);
            self.stepped.notify_one();
        }
        done
    }

    fn step(&self, party: usize) {
        if let Some(party) = self.parties.get(party) {
            party.busy.store(true, Ordering::Relaxed);
            party.stepped.store(true, Ordering::Relaxed);
            self.stepped.notify_one();
        }
    }

    /// Waits until the scout, and everybody who is busy, has taken a step since the last call ended. For one caller.
    pub(crate) async fn by_all(&self) {
        while !self.parties.iter().all(Party::goes_on) || !self.parties[SCOUT].busy.load(Ordering::Relaxed) {
            self.stepped.notified().await;
        }
        for party in &self.parties {
            party.stepped.store(false, Ordering::Relaxed);
        }
    }
}

impl Party {
    fn goes_on(&self) -> bool {
        !self.busy.load(Ordering::Relaxed) || self.stepped.load(Ordering::Relaxed)
    }
}

impl Default for Progress {
    fn default() -> Self {
        Progress::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::future::pending;
    use std::time::Duration;
    use tokio::time::{sleep, timeout};

    async fn fed(progress: &Progress) -> bool {
        timeout(Duration::from_secs(600), progress.by_all()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn each_step_counts_once() {
        let progress = Progress::new();
        assert!(!fed(&progress).await, "nobody has begun");
        progress.scouted();
        assert!(fed(&progress).await);
        assert!(!fed(&progress).await, "there was none since");
        progress.scouted();
        assert!(fed(&progress).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cycle_that_nothing_wakes_any_more_is_no_progress_whatever_the_scout_does() {
        let progress = Progress::new();
        let mut hanging = pin!(progress.of(2, pending::<()>()));
        assert!(hanging.as_mut().now_or_never().is_none());
        progress.scouted();
        assert!(fed(&progress).await, "it has begun");
        progress.scouted();
        assert!(!fed(&progress).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cycle_that_waits_for_a_server_is_progress_and_an_idle_worker_is_in_nobodys_way() {
        let progress = Progress::new();
        let waits = async {
            for _ in 0..100 {
                sleep(Duration::from_secs(3)).await;
            }
        };
        let scout = async {
            loop {
                progress.scouted();
                sleep(Duration::from_secs(1)).await;
            }
        };
        let feeding = async {
            for _ in 0..50 {
                assert!(timeout(Duration::from_secs(5), progress.by_all()).await.is_ok());
            }
        };
        tokio::select! {
            _ = async { tokio::join!(progress.of(1, waits), scout) } => unreachable!(),
            () = feeding => {}
        }
        progress.of(1, async {}).await;
        progress.scouted();
        assert!(fed(&progress).await, "the worker rests");
        progress.scouted();
        assert!(fed(&progress).await, "it still does");
    }
}
