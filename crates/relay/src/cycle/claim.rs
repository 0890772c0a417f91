//! The first stage: claims lanes and plans the read. Also keeps the claim alive while the cycle waits for Kafka.

use crate::cycle::publish::Awaited;
use crate::outbox::{RowSelection, Wanted};
use crate::{
    Batch, Claim, Lane, MarksSnapshot, Outbox, PostgresFault, ReadRequest, Relay, SeenIds, fail_point,
};
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use tokio::time::{Instant, sleep_until, timeout};

/// The maximum number of rows per slice. Rows of a slice beyond the byte limit are read and dropped.
pub(super) const SLICE_ROWS_MAX: usize = 1_024;

pub(super) struct Claimed<C> {
    pub(super) claim: C,
    pub(super) planned: PlannedRead,
    pub(super) lanes: Vec<Lane>,
    /// When Kafka must have acknowledged the batch.
    pub(super) deadline: Instant,
    /// When the server last got a statement of the claim. It ends a claim after `takeover_timeout` without one.
    pub(super) kept_at: Instant,
    /// Why the claim must not be settled: it was lost, or its read failed.
    pub(super) fault: Option<PostgresFault>,
    /// See [`crate::Session::sends_until`].
    pub(super) sends_until: Rc<Cell<Option<Instant>>>,
    /// Rows that another session has locked are left out of the settlement.
    pub(super) around_locks: bool,
    /// Rows arrive often, and the claim is for every lane that this relay can have. If flows of some lanes began at once, each worker
    /// would keep its lanes for as long as rows arrive, and none would ever have all of them.
    pub(super) flows_at_once: bool,
    pub(super) flow: Flow,
}

/// What a claim has done before its settlement. Without a flow, only `measured` changes.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// The rows before this index are recorded as sent, which takes effect with the commit of the settlement.
    pub(super) recorded: usize,
    /// One of them was missing, because another session had moved or deleted it.
    pub(super) missed: bool,
    /// The latency of the rows before this index has been measured.
    pub(super) measured: usize,
    /// Rows for whose reports the flow continued beyond its window.
    pub(super) awaited: Option<Awaited>,
    /// The number of rows that were acknowledged during the flow, or in an earlier cycle.
    pub(super) acknowledged: usize,
    pub(super) finds_rows: bool,
    /// Rows were still arriving when the flow ended.
    pub(super) is_arriving: bool,
}

/// A read with the marks at the time it was planned.
pub(super) struct PlannedRead {
    pub(super) marks: MarksSnapshot,
    pub(super) read: ReadRequest,
    /// What a flow searches for after this read. It is taken before the read is sent. Later, another worker may have seen a
    /// row that this read does not contain.
    pub(super) search: Option<SeenIds>,
    pub(super) lanes: Vec<Lane>,
    pub(super) begun: Instant,
    /// Whether it was sent together with the claim.
    pub(super) sent: bool,
}

/// Claims those of `lanes` that are free, or returns `None` if none is.
///
/// If no backlog is known, the read of all `lanes` is sent together with the claim, and rows of other lanes are discarded.
pub(super) async fn claim<'o, O: Outbox, P>(
    relay: &Relay<P>,
    outbox: &'o mut O,
    lanes: &[Lane],
    around_locks: bool,
) -> Result<Option<Claimed<O::Claim<'o>>>, PostgresFault> {
    let flows_at_once = relay.lanes.board.arrives_often.get() && relay.lanes.board.leaves_none(lanes);
    let claim_first = relay.lanes.board.has_more(lanes)
        || relay.lanes.board.were_locked_by_others(lanes)
        || relay.lanes.narrowing.claims_first(lanes);
    let rows_max = rows_at_once(relay, claim_first && outbox.reads_in_slices(), claim_first);
    let rows_max = relay.lanes.narrowing.rows_max(lanes, relay.memory.rows_max(rows_max));
    let early = (!claim_first).then(|| PlannedRead::new(relay, lanes, rows_max));
    let claim = outbox.claim(lanes, early.as_ref().map(|planned| &planned.read)).await?;
    if claim.lanes().is_empty() {
        claim.release().await?;
        return Ok(None);
    }
    fail_point::reach("lanes-locked").await;
    relay.lanes.marks.borrow_mut().note_server(claim.server());
    let owned = claim.lanes().to_vec();
    let planned = match early {
        // The server is still the one for which the read was planned.
        Some(mut early) if early.marks.generation == relay.lanes.marks.borrow().generation => {
            early.read.wanted.retain(|wanted| owned.contains(&wanted.lane));
            PlannedRead { sent: true, ..early }
        }
        _ => PlannedRead::new(relay, &owned, rows_max),
    };
    let now = Instant::now();
    Ok(Some(Claimed {
        claim,
        planned,
        lanes: owned,
        deadline: now + relay.settings.limits().publish_timeout,
        kept_at: now,
        fault: None,
        sends_until: Rc::default(),
        around_locks,
        flows_at_once,
        flow: Flow::default(),
    }))
}

/// How many rows a read asks for. A read that is fetched slice by slice ends at `batch_bytes` by itself. Any other transfers all of
/// its rows, so it asks for as many as are likely to fit. If no backlog is known, a burst of unexpectedly large rows costs at most
/// [`SLICE_ROWS_MAX`] rows.
fn rows_at_once<P>(relay: &Relay<P>, in_slices: bool, claim_first: bool) -> usize {
    let limits = relay.settings.limits();
    if in_slices {
        return limits.batch_rows;
    }
    let fitting = relay.memory.rows_in(limits.batch_bytes).min(limits.batch_rows);
    if claim_first { fitting } else { fitting.min(SLICE_ROWS_MAX) }
}

impl PlannedRead {
    fn new<P>(relay: &Relay<P>, lanes: &[Lane], rows_max: usize) -> PlannedRead {
        let search = relay.lanes.marks.borrow_mut().search();
        let marks = relay.lanes.marks.borrow().snapshot(lanes);
        let refused = relay.memory.shares_if_refused(lanes);
        let rows_max = refused.as_ref().map_or(rows_max, |shares| shares.iter().sum::<usize>().min(rows_max));
        let shares = refused.unwrap_or_else(|| relay.lanes.board.shares(lanes, rows_max));
        let wanted = lanes.iter().zip(&marks.lows).zip(shares);
        let read = ReadRequest {
            rows: RowSelection::Pending,
            wanted: wanted.map(|((&lane, &low), share)| Wanted { lane, low, share, row: None }).collect(),
            epoch: marks.epoch,
            excepted: marks.excepted.clone(),
            rows_max,
        };
        PlannedRead { marks, read, search, lanes: lanes.to_vec(), begun: Instant::now(), sent: false }
    }
}

impl<C: Claim> Claimed<C> {
    /// Gives the next rows the whole `publish_timeout`, unless earlier rows are overdue.
    pub(super) fn extend_deadline<P>(&mut self, relay: &Relay<P>) {
        let begun = self.flow.awaited.map_or_else(Instant::now, |awaited| awaited.begun);
        self.deadline = begun + relay.settings.limits().publish_timeout;
    }

    /// Measures the latency of the acknowledged rows before this index that were not measured yet.
    pub(super) fn measure_latency<P>(&mut self, relay: &Relay<P>, batch: &Batch<C::Event>, to: usize) {
        relay.health.measure_latency(batch.sent_in(self.flow.measured..to));
        self.flow.measured = to;
    }

    pub(super) fn lose(&mut self, fault: PostgresFault) {
        self.sends_until.set(None);
        self.fault = Some(fault);
    }

    /// Records that the server has answered a statement that was sent at this time.
    pub(super) fn kept<P>(&mut self, relay: &Relay<P>, sent_at: Instant) {
        self.kept_at = sent_at;
        let until = sent_at + relay.settings.limits().takeover_timeout;
        self.sends_until.set(self.sends_until.get().map(|_| until));
    }

    /// Checks the claim after a read that took so long that the server may have ended it. A relay that was frozen finds the rows in
    /// its buffers all the same, and another relay may publish them by now.
    pub(super) async fn check_after<P>(
        &mut self,
        relay: &Relay<P>,
        read_begun: Instant,
    ) -> Result<(), PostgresFault> {
        let mut sent_at = read_begun;
        if sent_at.elapsed() >= relay.settings.limits().takeover_timeout {
            sent_at = Instant::now();
            self.claim.keep_alive().await?;
        }
        self.kept(relay, sent_at);
        Ok(())
    }

    /// Waits for `work` and keeps the claim alive meanwhile. If the claim is lost, the work continues, because
    /// acknowledgements still count. `work` must end by itself, because this feeds the watchdog while it waits.
    pub(super) async fn keep_during<P, T>(&mut self, relay: &Relay<P>, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        while self.fault.is_none() {
            let beat = async {
                sleep_until(self.kept_at + relay.settings.limits().takeover_timeout / 3).await;
                let now = Instant::now();
                self.claim.keep_alive().await.map(|()| now)
            };
            let kept = tokio::select! {
                biased;
                done = &mut work => return done,
                kept = beat => kept,
            };
            match kept {
                Ok(at) => self.kept(relay, at),
                Err(fault) => self.lose(fault),
            }
        }
        loop {
            if let Ok(done) = timeout(relay.settings.limits().takeover_timeout / 3, work.as_mut()).await {
                return done;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cycle::tests::relay_with;
    use crate::fixture::FakeCluster;

    #[test]
    fn a_read_that_is_not_fetched_in_slices_asks_for_the_rows_of_batch_bytes() {
        // 10 rows or 1,000 bytes.
        let relay = relay_with(FakeCluster::default());
        relay.memory.note_failed_slice(250);
        assert_eq!(rows_at_once(&relay, true, true), 10, "slices end at batch_bytes");
        assert_eq!(rows_at_once(&relay, false, true), 4);
        assert_eq!(rows_at_once(&relay, false, false), 4);
        relay.memory.note_failed_slice(1);
        assert_eq!(rows_at_once(&relay, false, true), 10, "batch_rows still applies");
    }
}
