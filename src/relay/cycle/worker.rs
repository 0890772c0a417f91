//! A worker: one Postgres connection, one session, one cycle after the other.

use crate::fail_point;
use crate::relay::Relay;
use crate::relay::cycle::backoff::Backoff;
use crate::relay::cycle::batch::Reach;
use crate::relay::cycle::session::Session;
use crate::relay::cycle::{self, Cycle};
use crate::relay::failure::{Failure, FailureKind, FaultKind};
use crate::relay::health::stats::Stats;
use crate::relay::lane::Lane;
use crate::relay::lanes::board::Again;
use crate::relay::outbox::Outbox;
use crate::relay::publisher::Publisher;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MOST: Duration = Duration::from_secs(2);
/// After so many vain attempts a failure of the session alone counts as an outage.
const SESSIONS_IN_A_ROW: u32 = 3;

/// Works until the board stops, and finishes the cycle under way. Workers are numbered from 1.
pub async fn work<O: Outbox, P: Publisher>(
    relay: Rc<Relay<P>>,
    number: usize,
    mut outbox: O,
    random: fastrand::Rng,
) {
    let mut worker = Worker {
        number,
        session: None,
        renewals: relay.renewals.get(),
        backoff: Backoff::new(RETRY_FIRST, RETRY_MOST, random),
        relay: &relay,
    };
    relay.stats.workers.inc();
    while let Some(mut session) = worker.session().await {
        let Some(lanes) = relay.board.take().await else {
            session.abandon();
            break;
        };
        let waits = if !relay.gate.is_open() {
            relay.board.give_back(&lanes, &[]);
            false
        } else if worker.is_outdated() {
            relay.board.give_back(&lanes, &[]);
            relay.board.put_up(lanes);
            false
        } else {
            let lanes = relay.narrowing.first_of(&relay.board, lanes);
            worker.cycle(&mut outbox, &mut session, &lanes).await
        };
        worker.keep(session);
        if waits {
            sleep(worker.backoff.next_wait()).await;
        }
    }
}

struct Worker<'a, P: Publisher> {
    relay: &'a Relay<P>,
    number: usize,
    /// Open, and idle.
    session: Option<Session<P::Producer>>,
    /// How often the sessions were to be renewed when this one was opened.
    renewals: u64,
    backoff: Backoff,
}

impl<P: Publisher> Worker<'_, P> {
    /// A session to work with, as soon as the gate is open. It is opened before lanes are claimed: that takes time and
    /// may fail, and meanwhile the lanes are free for others. `None` once the relay stops.
    async fn session(&mut self) -> Option<Session<P::Producer>> {
        let relay = self.relay;
        while !relay.board.is_stopped() {
            if self.is_outdated()
                && let Some(session) = self.session.take()
            {
                session.abandon();
            }
            if !relay.gate.is_open() {
                wait_for_gate(relay).await;
                continue;
            }
            if let Some(session) = self.session.take() {
                return Some(session);
            }
            self.renewals = relay.renewals.get();
            let opening = async {
                tokio::select! {
                    biased;
                    () = relay.board.stopped() => None,
                    opened = open(relay) => Some(opened),
                }
            };
            match relay.stats.progress.of(self.number, opening).await {
                None => return None,
                Some(Ok(producer)) => return Some(Session::new(producer)),
                Some(Err(failure)) => {
                    failed(relay, &failure, 0, self.backoff.attempts());
                    sleep(self.backoff.next_wait()).await;
                }
            }
        }
        if let Some(session) = self.session.take() {
            session.abandon();
        }
        None
    }

    /// Keeps the session for the next cycle, unless it has failed.
    fn keep(&mut self, session: Session<P::Producer>) {
        match session.failure() {
            None => self.session = Some(session),
            Some(_) => session.abandon(),
        }
    }

    /// The settings or secrets of its session are not those of now.
    fn is_outdated(&self) -> bool {
        self.renewals != self.relay.renewals.get()
    }

    /// Runs a cycle. True if the next one should wait a little.
    async fn cycle<O: Outbox>(
        &mut self,
        outbox: &mut O,
        session: &mut Session<P::Producer>,
        lanes: &[Lane],
    ) -> bool {
        let (relay, number) = (self.relay, self.number);
        let before = relay.narrowing.before(lanes);
        let begun = Instant::now();
        // A settlement of these lanes has failed: perhaps it met somebody else's lock, which the next one, whoever's it
        // is, goes round instead of waiting for it too.
        let skip_locked = relay.acknowledged.borrow().has_any_of(lanes);
        relay.stats.workers_busy.inc();
        relay.stats.lanes_in_hand.inc_by(lanes.len() as i64);
        let cycle = cycle::run(relay, outbox, session, lanes, skip_locked);
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
                give_back(relay, lanes, &cycle);
                if !cycle.locked_out {
                    relay.narrowing.settled(&relay.board, &cycle.reach);
                }
                // It settled nothing but rows of earlier batches, some of which another session keeps locked.
                let locked_out = cycle.locked_out && cycle.recovered == cycle.sent;
                let waits = after_cycle(relay, &cycle, self.backoff.attempts()) || locked_out;
                if !waits {
                    self.backoff.reset();
                }
                waits
            }
            Err(fault) => {
                relay.stats.postgres_faults.inc();
                if relay.narrowing.takes(&relay.board, lanes, &before, &fault) {
                    return false;
                }
                relay.board.give_back(lanes, &[]);
                match fault.kind {
                    FaultKind::Contended => relay.locks.failed(number, &fault, LOCKS_ADVICE),
                    FaultKind::Unavailable | FaultKind::Refused | FaultKind::Data | FaultKind::TimedOut => {
                        relay.postgres_failed(number, &fault);
                    }
                }
                true
            }
        }
    }
}

async fn open<P: Publisher>(relay: &Relay<P>) -> Result<P::Producer, Failure> {
    fail_point::reach("opening-session").await;
    relay.publisher.open().await
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
fn give_back<P>(relay: &Relay<P>, lanes: &[Lane], cycle: &Cycle) {
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

/// True if the next cycle should wait a little.
fn after_cycle<P>(relay: &Relay<P>, cycle: &Cycle, attempts: u32) -> bool {
    if let Some(failure) = &cycle.failure {
        failed(relay, failure, cycle.sent, attempts);
    }
    if let Some(failure) = &cycle.unjudged {
        tracing::debug!("rows that Kafka refused are not judged: {failure}");
        if failure.kind == FailureKind::Cluster {
            relay.gate.close(failure.clone());
        }
    }
    // Suspects that could not be judged are claimed again, whatever was sent besides.
    cycle.unjudged.is_some() || (cycle.failure.is_some() && cycle.sent == 0)
}

/// Counts what ended a session, or kept one from being opened. If it is about the cluster, nothing is claimed until a probe
/// succeeds. So it is taken if nothing at all was acknowledged: by the session, or, where only the producer was at fault,
/// by several in a row.
fn failed<P>(relay: &Relay<P>, failure: &Failure, sent: usize, attempts: u32) {
    relay.stats.count_failure(failure.reason);
    tracing::debug!("a session ended: {failure}");
    let closes = match failure.kind {
        FailureKind::Cluster => true,
        FailureKind::Unknown => sent == 0,
        FailureKind::Session => sent == 0 && attempts >= SESSIONS_IN_A_ROW,
        FailureKind::Row | FailureKind::Topic => false,
    };
    if closes {
        relay.gate.close(failure.clone());
    }
}

#[cfg(test)]
mod tests;
