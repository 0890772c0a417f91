//! The reaper: deletes rows that were sent longer ago than the retention, in bounded batches.

use super::failure::{Fault, FaultKind};
use super::outage::Outage;
use super::stats::Stats;
use super::worker::POSTGRES_ADVICE;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// The reaper's way to the outbox.
#[allow(async_fn_in_trait, reason = "the relay runs on one thread: no future has to be Send")]
pub trait Reap {
    /// Deletes one batch.
    async fn reap_once(&mut self) -> Result<Reaped, Fault>;
}

/// What one batch did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaped {
    /// Rows deleted.
    pub rows: u64,
    /// There may be more.
    pub more: bool,
}

/// Reaps every `interval`, until everything old is gone.
pub async fn keep_reaping<R: Reap>(mut reap: R, interval: Duration, stats: Arc<Stats>) {
    let outage = Outage::new("the reaper");
    loop {
        let reaped = reap.reap_once().await;
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
        sleep(interval).await;
    }
}
