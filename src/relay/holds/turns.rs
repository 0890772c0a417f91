//! Whose turn it is: the prober gets lanes one by one, as this relay's workers and other relays are done with them.

use crate::relay::Relay;
use crate::relay::lane::Lane;
use crate::relay::lanes::board::Board;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// How long lanes are waited for.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often a lane is tried that another relay has locked.
const TRY_EVERY: Duration = Duration::from_millis(20);

/// Lanes that the prober wants. Dropping it gives them back to the workers.
pub(crate) struct Turns<'a> {
    board: &'a Board,
    /// A worker has these.
    in_hand: BTreeSet<Lane>,
    reserving: FuturesUnordered<LocalBoxFuture<'a, Lane>>,
    /// No worker gets these.
    reserved: Vec<Lane>,
    deadline: Instant,
}

impl<'a> Turns<'a> {
    /// Wants these lanes.
    pub(crate) fn new<Q>(relay: &'a Relay<Q>, lanes: impl Iterator<Item = Lane>) -> Turns<'a> {
        let board = &relay.board;
        let in_hand: BTreeSet<Lane> = lanes.collect();
        let reserve = |lane: Lane| board.reserve(lane).map(move |()| lane).boxed_local();
        let reserving = in_hand.iter().copied().map(reserve).collect();
        Turns { board, in_hand, reserving, reserved: Vec::new(), deadline: Instant::now() + PATIENCE }
    }

    /// The lanes that no worker of this relay has now; `None` if there are none left, or it takes too long.
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
        self.in_hand.remove(&lane);
        self.reserved.push(lane);
    }

    /// Other relays have all of them.
    pub(crate) async fn pause(&self) {
        sleep(TRY_EVERY).await;
    }

    /// These are no longer needed.
    pub(crate) fn done(&mut self, lanes: &[Lane]) {
        self.reserved.retain(|lane| !lanes.contains(lane));
        lanes.iter().for_each(|lane| self.board.give_up(*lane));
    }
}

impl Drop for Turns<'_> {
    fn drop(&mut self) {
        self.in_hand.iter().for_each(|lane| self.board.forgo(*lane));
        self.reserved.iter().for_each(|lane| self.board.give_up(*lane));
    }
}
