//! The reaper: decides when to delete old rows, one batch at a time.

use crate::{Availability, FaultKind, PostgresFault, Stats};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

const ADVICE: &str = "Events are still published, but old rows are not deleted. If this persists, run `outbox-relay \
     check-config --connect`";

/// How long sent rows are kept, and how fast older ones are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    pub interval: Duration,
    pub retention: Duration,
    /// How long the marks of the inbox are kept.
    pub inbox_retention: Duration,
    /// How long finished idempotent requests are kept.
    pub idempotency_retention: Duration,
    pub batch_rows: usize,
}

pub trait Reap {
    async fn reap_once(&mut self, pace: Pace) -> Result<Reaped, PostgresFault>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaped {
    pub rows: u64,
    pub more: bool,
}

/// Reaps every `interval` until no old rows are left. A new pace applies at once.
pub async fn keep_reaping<R: Reap>(mut reap: R, mut paces: watch::Receiver<Pace>, stats: Arc<Stats>) {
    let outage = Availability::new("reaper", "reaper_failed").described("failing", "working again");
    loop {
        let pace = *paces.borrow_and_update();
        let reaped = reap.reap_once(pace).await;
        stats.reaper_batches.inc();
        match reaped {
            Ok(Reaped { rows, more }) => {
                // A fault may follow after the modules.
                if rows > 0 || !more {
                    outage.worked(0);
                }
                stats.reaped.inc_by(rows);
                if more {
                    tokio::task::yield_now().await;
                    continue;
                }
            }
            Err(fault) if fault.kind == FaultKind::Unavailable => {
                // During an outage, the scout fails the same way and logs it.
                stats.reaper_faults.inc_by((stats.postgres_up.get() == 1).into());
                tracing::debug!("{fault}");
            }
            Err(fault) => {
                stats.reaper_faults.inc();
                outage.failed(0, &fault, ADVICE);
            }
        }
        tokio::select! {
            () = sleep(pace.interval) => {}
            Ok(()) = paces.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    struct Failing(FaultKind);

    impl Reap for Failing {
        async fn reap_once(&mut self, _: Pace) -> Result<Reaped, PostgresFault> {
            Err(PostgresFault { kind: self.0, doing: "reaping", message: String::new() })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_of_postgres_is_no_fault_of_the_reaper() {
        let minute = Duration::from_secs(60);
        let pace = Pace {
            interval: minute,
            retention: minute,
            inbox_retention: minute,
            idempotency_retention: minute,
            batch_rows: 1,
        };
        for (kind, is_up, counts) in [
            (FaultKind::Unavailable, false, false),
            (FaultKind::Unavailable, true, true),
            (FaultKind::Refused, true, true),
        ] {
            let stats = Arc::new(Stats::new());
            stats.postgres_up.set(is_up.into());
            let (_paces, changes) = watch::channel(pace);
            _ = timeout(10 * minute, keep_reaping(Failing(kind), changes, Arc::clone(&stats))).await;
            assert_eq!(stats.reaper_faults.get() > 0, counts, "{kind:?}, {is_up}");
        }
    }
}
