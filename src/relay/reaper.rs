//! The reaper: deletes rows that were sent longer ago than the retention, in bounded batches.

use crate::relay::failure::{Fault, FaultKind};
use crate::relay::health::outage::Outage;
use crate::relay::health::outage::POSTGRES_ADVICE;
use crate::relay::health::stats::Stats;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// How long sent rows are kept, and how the others are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// From one round to the next.
    pub interval: Duration,
    /// Sent longer ago than this is old.
    pub retention: Duration,
    /// So old are the inbox's marks that go.
    pub inbox_retention: Duration,
    /// So old are the finished requests that go.
    pub idempotency_retention: Duration,
    /// At most so many rows a transaction.
    pub batch_rows: usize,
}

/// The reaper's way to the outbox.
#[allow(async_fn_in_trait, reason = "the relay runs on one thread: no future has to be Send")]
pub trait Reap {
    /// Deletes one batch.
    async fn reap_once(&mut self, pace: Pace) -> Result<Reaped, Fault>;
}

/// What one batch did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaped {
    /// Rows deleted.
    pub rows: u64,
    /// There may be more.
    pub more: bool,
}

/// Reaps every `interval`, until everything old is gone. Another pace holds at once.
pub async fn keep_reaping<R: Reap>(mut reap: R, mut paces: watch::Receiver<Pace>, stats: Arc<Stats>) {
    let outage = Outage::new("reaper");
    loop {
        let pace = *paces.borrow_and_update();
        let reaped = reap.reap_once(pace).await;
        stats.reaper_batches.inc();
        stats.reaper_faults.inc_by(reaped.is_err().into());
        match reaped {
            Ok(Reaped { rows, more }) => {
                outage.worked(0);
                stats.reaped.inc_by(rows);
                if more {
                    tokio::task::yield_now().await;
                    continue;
                }
            }
            // The scout meets that too, and says it.
            Err(fault) if fault.kind == FaultKind::Unavailable => tracing::debug!("{fault}"),
            Err(fault) => outage.failed(0, &fault, POSTGRES_ADVICE),
        }
        tokio::select! {
            () = sleep(pace.interval) => {}
            Ok(()) = paces.changed() => {}
        }
    }
}
