//! Progress, which feeds the watchdog: the scout's rounds, and the steps of each busy worker.
//!
//! Only the party itself counts its steps, never a clock. Waiting for a server also counts, because every such wait ends
//! with an answer, a keep-alive to Postgres, or a timeout.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// The scout is party 0. Workers count from 1, and there are 64 at most.
const PARTIES: usize = 65;
const SCOUT: usize = 0;

/// The steps of the scout and the workers.
pub struct Progress {
    parties: [Party; PARTIES],
    stepped: Notify,
}

#[derive(Default)]
struct Party {
    busy: AtomicBool,
    /// Whether it has taken a step since the last check.
    stepped: AtomicBool,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress { parties: std::array::from_fn(|_| Party::default()), stepped: Notify::new() }
    }

    /// Counts a step of the scout, which is busy from the first one on.
    pub(crate) fn scouted(&self) {
        self.step(SCOUT);
    }

    /// Runs a cycle of this worker, which is busy meanwhile. Each time the cycle is woken counts as a step.
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

    /// Waits until the scout and every busy worker has taken a step since the last call ended. For one caller.
    pub async fn by_all(&self) {
        while !self.parties.iter().all(Party::is_alive) || !self.parties[SCOUT].busy.load(Ordering::Relaxed) {
            self.stepped.notified().await;
        }
        for party in &self.parties {
            party.stepped.store(false, Ordering::Relaxed);
        }
    }
}

impl Party {
    fn is_alive(&self) -> bool {
        !self.busy.load(Ordering::Relaxed) || self.stepped.load(Ordering::Relaxed)
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
        assert!(!fed(&progress).await, "nothing has started");
        progress.scouted();
        assert!(fed(&progress).await);
        assert!(!fed(&progress).await, "there was no step since");
        progress.scouted();
        assert!(fed(&progress).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cycle_that_nothing_wakes_is_no_progress_even_if_the_scout_continues() {
        let progress = Progress::new();
        let mut hanging = pin!(progress.of(2, pending::<()>()));
        assert!(hanging.as_mut().now_or_never().is_none());
        progress.scouted();
        assert!(fed(&progress).await, "it has started");
        progress.scouted();
        assert!(!fed(&progress).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cycle_that_waits_for_a_server_is_progress_and_an_idle_worker_does_no_harm() {
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
        assert!(fed(&progress).await, "the worker is idle");
        progress.scouted();
        assert!(fed(&progress).await, "it is still idle");
    }
}
