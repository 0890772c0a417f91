//! Gives lanes to the prober as this relay's workers and other relays finish with them.

use crate::Relay;
use crate::lane::Lane;
use crate::lanes::board::Board;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

const PATIENCE: Duration = Duration::from_secs(3);
/// How often to retry lanes that other relays have locked.
const TRY_EVERY: Duration = Duration::from_millis(20);

/// Lanes that the prober needs. Dropping it returns them to the workers.
pub(crate) struct Turns<'a> {
    board: &'a Board,
    /// Lanes that a worker may still have.
    taken: BTreeSet<Lane>,
    reserving: FuturesUnordered<LocalBoxFuture<'a, Lane>>,
    /// Lanes that no worker gets.
    reserved: Vec<Lane>,
    deadline: Instant,
}

impl<'a> Turns<'a> {
    pub(crate) fn new<Q>(relay: &'a Relay<Q>, lanes: impl Iterator<Item = Lane>) -> Turns<'a> {
        let board = &relay.board;
        let taken: BTreeSet<Lane> = lanes.collect();
        let reserve = |lane: Lane| board.reserve(lane).map(move |()| lane).boxed_local();
        let reserving = taken.iter().copied().map(reserve).collect();
        Turns { board, taken, reserving, reserved: Vec::new(), deadline: Instant::now() + PATIENCE }
    }

    /// Waits for lanes that no worker of this relay has. `None` if no lanes are left or it takes too long.
    pub(crate) async fn next(&mut self) -> Option<Vec<Lane>> {
        if self.reserved.is_empty() {
            let lane = timeout_at(self.deadline, self.reserving.next()).await.ok()??;
            self.take(lane);
        }
        while let Some(Some(lane)) = self.reserving.next().now_or_never() {
            self.take(lane);
        }
        (Instant::now() < self.deadline).then(|| self.reserved.clone())
    }

    fn take(&mut self, lane: Lane) {
        self.taken.remove(&lane);
        self.reserved.push(lane);
    }

    /// Waits before the next attempt, because other relays have locked all of the lanes.
    pub(crate) async fn pause(&self) {
        sleep(TRY_EVERY).await;
    }

    pub(crate) fn done(&mut self, lanes: &[Lane]) {
        self.reserved.retain(|lane| !lanes.contains(lane));
        lanes.iter().for_each(|lane| self.board.end_reservation(*lane));
    }
}

impl Drop for Turns<'_> {
    fn drop(&mut self) {
        self.taken.iter().for_each(|lane| self.board.cancel_reservation(*lane));
        self.reserved.iter().for_each(|lane| self.board.end_reservation(*lane));
    }
}
