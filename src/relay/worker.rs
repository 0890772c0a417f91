//! A worker: one Postgres connection, one session, one cycle after the other.

use super::Relay;
use super::backoff::Backoff;
use super::batch::Reach;
use super::board::Again;
use super::cycle::{self, Cycle};
use super::failure::{FailureKind, FaultKind};
use super::outbox::Outbox;
use super::publisher::Publisher;
use super::session::Session;
use super::stats::Stats;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MOST: Duration = Duration::from_secs(2);

/// Works until the board stops, and finishes the cycle under way. Workers are numbered from 1.
pub async fn work<O: Outbox, P: Publisher>(
    relay: Rc<Relay<P>>,
    number: usize,
    mut outbox: O,
    random: fastrand::Rng,
) {
    let mut session: Option<Session<P::Producer>> = None;
    let mut renewals = relay.renewals.get();
    let mut backoff = Backoff::new(RETRY_FIRST, RETRY_MOST, random);
    relay.stats.workers.inc();
    while let Some(lanes) = relay.board.take().await {
        if !relay.gate.is_open() {
            relay.board.give_back(&lanes, &[]);
            wait_for_gate(&relay).await;
            continue;
        }
        let lanes = relay.narrowing.first_of(&relay.board, lanes);
        let before = relay.narrowing.before(&lanes);
        let now = relay.renewals.get();
        if std::mem::replace(&mut renewals, now) != now
            && let Some(session) = session.take()
        {
            session.abandon();
        }
        let begun = Instant::now();
        // A settlement of these lanes has failed: perhaps it met somebody else's lock, which the next one, whoever's it
        // is, goes round instead of waiting for it too.
        let skip_locked = relay.acknowledged.borrow().has_any_of(&lanes);
        relay.stats.workers_busy.inc();
        relay.stats.lanes_in_hand.inc_by(lanes.len() as i64);
        let cycle = cycle::run(&relay, &mut outbox, &mut session, &lanes, skip_locked);
        let done = relay.stats.progress.of(number, cycle).await;
        relay.stats.lanes_in_hand.dec_by(lanes.len() as i64);
        relay.stats.workers_busy.dec();
        relay.stats.unsettled.set(relay.acknowledged.borrow().len() as i64);
        match done {
            Ok(cycle) => {
                relay.postgres_worked(number);
                if cycle.locked_out {
                    relay.locks.failed(
                        number,
                        &"rows that were sent cannot be recorded as sent",
                        LOCKS_ADVICE,
                    );
                } else {
                    relay.locks.worked(number);
                }
                count(&relay.stats, &cycle, begun.elapsed());
                give_back(&relay, &lanes, &cycle);
                if !cycle.locked_out {
                    relay.narrowing.settled(&relay.board, &cycle.reach);
                }
                // Rows that somebody keeps locked are all that it had to settle.
                let locked_out = cycle.locked_out && cycle.recovered == cycle.rows;
                if after_session(&relay, &cycle) || locked_out {
                    sleep(backoff.next_wait()).await;
                } else {
                    backoff.reset();
                }
            }
            Err(fault) => {
                relay.stats.postgres_faults.inc();
                if relay.narrowing.takes(&relay.board, &lanes, &before, &fault) {
                    continue;
                }
                relay.board.give_back(&lanes, &[]);
                match fault.kind {
                    FaultKind::Contended => relay.locks.failed(number, &fault, LOCKS_ADVICE),
                    FaultKind::Unavailable | FaultKind::Refused | FaultKind::Data | FaultKind::TimedOut => {
                        relay.postgres_failed(number, &fault);
                    }
                }
                sleep(backoff.next_wait()).await;
            }
        }
    }
    if let Some(session) = session {
        session.abandon();
    }
}

/// What to do about a Postgres that fails.
pub const POSTGRES_ADVICE: &str =
    "The relay goes on by itself as soon as it works; `outbox-relay check-config --connect` says more";

/// What to do about locks that do not go away.
const LOCKS_ADVICE: &str = "Somebody else has locked the outbox, or rows of it: find the session in pg_locks and end it; docs/runbook.md has \
     the statement, under OutboxRelayUnsettled. The relay goes on by itself then, and sends nothing again";

async fn wait_for_gate<P>(relay: &Relay<P>) {
    tokio::select! {
        biased;
        () = relay.gate.opened() => {}
        () = relay.board.stopped() => {}
    }
}

/// Counts a cycle whose COMMIT is confirmed.
fn count(stats: &Stats, cycle: &Cycle, took: Duration) {
    stats.published.inc_by(cycle.sent as u64);
    stats.recovered.inc_by(cycle.recovered as u64);
    if !cycle.reach.is_empty() {
        stats.claims.inc();
        stats.claims_empty.inc_by((cycle.rows == 0).into());
    }
    if cycle.rows > 0 {
        stats.batch_rows.observe(cycle.rows as f64);
        stats.batch_seconds.observe(took.as_secs_f64());
    }
    if let Some(publishing) = cycle.publishing {
        stats.publish_seconds.observe(publishing.as_secs_f64());
    }
}

/// Says which lanes have more work at once, and which are somebody else's.
fn give_back<P>(relay: &Relay<P>, lanes: &[super::lane::Lane], cycle: &Cycle) {
    let owned: Vec<_> = cycle.reach.iter().map(|reach| reach.lane).collect();
    let elsewhere: Vec<_> = lanes.iter().copied().filter(|lane| !owned.contains(lane)).collect();
    let more = |reach: &&Reach| reach.cut || reach.first_open.is_some();
    let again: Vec<_> = cycle.reach.iter().filter(more).map(again).collect();
    relay.board.give_back(&owned, &again);
    if cycle.failure.is_some() && owned.is_empty() {
        relay.board.give_back(&elsewhere, &[]);
    } else {
        relay.stats.lanes_elsewhere.inc_by(elsewhere.len() as u64);
        relay.board.elsewhere(&elsewhere);
    }
    // A row that stays locked is read again and again: that is no progress.
    if cycle.sent > 0 && !cycle.locked_out {
        relay.board.progressed();
    }
}

fn again(reach: &Reach) -> Again {
    Again { lane: reach.lane, front: reach.last_read.is_none(), hungry: reach.hungry }
}

/// True if the next session should wait a little.
fn after_session<P>(relay: &Relay<P>, cycle: &Cycle) -> bool {
    let Some(failure) = &cycle.failure else { return false };
    relay.stats.count_failure(failure.reason);
    tracing::debug!("a session ended: {failure}");
    if failure.kind == FailureKind::Cluster || (failure.kind == FailureKind::Unknown && cycle.sent == 0) {
        relay.gate.close(failure.clone());
    }
    cycle.sent == 0
}
