//! A worker: one Postgres connection, one session, one cycle after the other.

use crate::cycle::narrow::Before;
use crate::cycle::{self, Cycle};
use crate::health::availability::IDLE_AFTER;
use crate::reason::SMALLER_BATCHES;
use crate::{
    Backoff, FailureKind, FaultKind, KafkaFailure, Lane, Lanes, Marks, Outbox, PostgresFault, Producer,
    Publisher, Relay, Session, Stats, fail_point,
};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MOST: Duration = Duration::from_secs(2);
/// How long a lane is set aside while a probe has one of its rows in flight.
const PROBED_ASIDE: Duration = Duration::from_millis(250);
/// How long a lane is set aside while another session has locked one of its rows.
const LOCKED_ASIDE: Duration = Duration::from_millis(250);
/// After this many failed attempts, a failure of the session alone counts as an outage.
const SESSIONS_IN_A_ROW: u32 = 3;

/// Works until the board stops, then finishes the current cycle. Workers are numbered from 1.
pub async fn work<O: Outbox, P: Publisher>(
    relay: Rc<Relay<P>>,
    number: usize,
    mut outbox: O,
    random: fastrand::Rng,
) {
    let mut worker = Worker {
        number,
        reloads: relay.settings.reloads(),
        backoff: Backoff::new(RETRY_FIRST, RETRY_MOST, random),
        relay: &relay,
    };
    relay.stats.workers.inc();
    while let Some(session) = worker.open_session().await {
        if worker.use_session(&mut outbox, session).await {
            sleep(worker.backoff.next_wait()).await;
        }
    }
}

struct Worker<'a, P: Publisher> {
    relay: &'a Relay<P>,
    number: usize,
    /// How many times the limits had been reloaded when the session was opened.
    reloads: u64,
    backoff: Backoff,
}

impl<P: Publisher> Worker<'_, P> {
    /// Opens a session as soon as the gate is open, or returns `None` once the relay stops. Opening takes time and may fail,
    /// so lanes are claimed only afterwards.
    async fn open_session(&mut self) -> Option<Session<P::Producer>> {
        let relay = self.relay;
        while !relay.lanes.board.is_stopped() {
            if !relay.kafka.gate.is_open() {
                relay.opened().await;
                continue;
            }
            self.reloads = relay.settings.reloads();
            let opening = async {
                tokio::select! {
                    biased;
                    () = relay.lanes.board.stopped() => None,
                    opened = open(relay) => Some(opened),
                }
            };
            match relay.stats.progress.of(self.number, opening).await? {
                Ok(producer) => return Some(Session::new(producer, Rc::clone(&relay.kafka.counts))),
                Err(failure) => {
                    failed(relay, &failure, 0, self.backoff.attempts);
                    sleep(self.backoff.next_wait()).await;
                }
            }
        }
        None
    }

    /// Runs cycles on this session until it fails, has to be renewed, or the relay stops. Returns whether to wait before the
    /// next session.
    async fn use_session<O: Outbox>(&mut self, outbox: &mut O, mut session: Session<P::Producer>) -> bool {
        loop {
            let Some(lanes) = self.take(&session).await else { return false };
            let waits = self.work_on(outbox, &mut session, lanes).await;
            if session.failure.is_some() {
                return waits;
            }
            if waits {
                sleep(self.backoff.next_wait()).await;
            }
            if !self.may_use(&session).await {
                return false;
            }
        }
    }

    /// Waits for lanes with work. Returns `None` once the relay stops, or if the session is cut off from Kafka meanwhile: opening
    /// the next one shows whether Kafka is available. Outages of a worker that stays idle end once another one has settled
    /// something meanwhile. The busy one may have all lanes for as long as there is work.
    async fn take(&self, session: &Session<P::Producer>) -> Option<Vec<Lane>> {
        let health = &self.relay.health;
        let begun = Instant::now();
        let idle = async {
            while health.settled_at.get().is_none_or(|at| at <= begun) {
                sleep(IDLE_AFTER).await;
            }
            health.postgres_worked(self.number);
            while self.relay.memory.waits_for_locks() {
                sleep(IDLE_AFTER).await;
            }
            health.locks.worked(self.number);
            std::future::pending().await
        };
        let cut_off = async {
            loop {
                sleep(IDLE_AFTER).await; // also the least time between two sessions
                if session.producer.is_cut_off().await {
                    break;
                }
            }
            tracing::debug!("Kafka does not answer an idle producer, which is replaced");
        };
        tokio::select! {
            biased;
            lanes = self.relay.lanes.board.take() => lanes,
            never = idle => never,
            () = cut_off => None,
        }
    }

    /// Waits until the gate is open. Returns false if the session has to be renewed or the relay stops.
    async fn may_use(&self, session: &Session<P::Producer>) -> bool {
        while !self.relay.lanes.board.is_stopped() && !self.is_outdated(session) {
            if self.relay.kafka.gate.is_open() {
                return true;
            }
            self.relay.opened().await;
        }
        false
    }

    /// Whether the settings or secrets have changed since the session was opened, it is worn, or its connections may be silent:
    /// Kafka last answered it before it stopped answering another one. Otherwise a row that was not acknowledged could be
    /// delayed by one worker after the other.
    fn is_outdated(&self, session: &Session<P::Producer>) -> bool {
        let unanswered_since = self.relay.health.unanswered_since.get();
        let answered_at = session.reported_at.unwrap_or(session.opened_at);
        self.reloads != self.relay.settings.reloads()
            || session.producer.is_worn()
            || unanswered_since.is_some_and(|since| answered_at < since)
    }

    /// Runs a cycle over some of these lanes and gives back the others. Returns whether to wait before the next cycle.
    async fn work_on<O: Outbox>(
        &mut self,
        outbox: &mut O,
        session: &mut Session<P::Producer>,
        lanes: Vec<Lane>,
    ) -> bool {
        let relay = self.relay;
        // While there was no work, the gate may have closed or the settings may have changed.
        if !relay.kafka.gate.is_open() {
            relay.lanes.board.give_back(&lanes, &[]);
            relay.lanes.board.doubt();
            return false;
        }
        if self.is_outdated(session) {
            relay.lanes.board.give_back(&lanes, &[]);
            relay.lanes.board.add(lanes);
            return false;
        }
        let mut lanes = relay.lanes.narrowing.first_of(&relay.lanes.board, lanes);
        relay.lanes.board.note_arrival(relay.settings.limits().flow_gap);
        if relay.lanes.board.arrives_often.get()
            && !relay.settings.limits().flow_window.is_zero()
            && relay.lanes.narrowing.allows_all()
            && !relay.lanes.board.has_more(&lanes)
        {
            // Even if gaps in the ids keep a flow from beginning: at high rates, larger batches cost the relay and Kafka less CPU.
            let rest = relay.lanes.board.take_rest();
            lanes.extend(self.leave_hidden(rest, Marks::is_above_hidden));
        }
        let lanes = self.leave_hidden(lanes, Marks::may_claim);
        if lanes.is_empty() {
            return false;
        }
        let before = relay.lanes.narrowing.before(&lanes);
        let begun = Instant::now();
        match self.cycle(outbox, session, &lanes).await {
            Ok(cycle) => {
                if cycle.unanswered() {
                    relay.health.unanswered_since.set(Some(begun));
                }
                self.settled(&lanes, &cycle, begun.elapsed())
            }
            Err(fault) => self.not_settled(&lanes, &before, begun, &fault),
        }
    }

    /// Gives back the lanes that need a scan first, because many of their first rows are held, blocked or paused.
    fn leave_hidden(&self, lanes: Vec<Lane>, may_claim: fn(&Marks, Lane) -> bool) -> Vec<Lane> {
        let Lanes { board, marks, .. } = &self.relay.lanes;
        let (lanes, hidden): (Vec<Lane>, Vec<Lane>) =
            lanes.into_iter().partition(|lane| may_claim(&marks.borrow(), *lane));
        if !hidden.is_empty() {
            board.give_back(&hidden, &[]);
            board.doubt();
        }
        lanes
    }

    async fn cycle<O: Outbox>(
        &self,
        outbox: &mut O,
        session: &mut Session<P::Producer>,
        lanes: &[Lane],
    ) -> Result<Cycle, PostgresFault> {
        let relay = self.relay;
        // A settlement of these lanes has failed, perhaps because of a lock. The next one skips locked rows.
        let around_locks = relay.memory.acknowledged.borrow().lanes().any(|lane| lanes.contains(&lane));
        relay.stats.workers_busy.inc();
        relay.stats.claimed_lanes.inc_by(lanes.len() as i64);
        let cycle = cycle::run(relay, outbox, session, lanes, around_locks);
        let done = relay.stats.progress.of(self.number, cycle).await;
        relay.stats.claimed_lanes.dec_by(lanes.len() as i64);
        relay.stats.workers_busy.dec();
        relay.stats.unsettled.set(relay.memory.acknowledged.borrow().len() as i64);
        done
    }

    /// Handles a cycle whose COMMIT is confirmed. Returns whether to wait before the next cycle.
    fn settled(&mut self, lanes: &[Lane], cycle: &Cycle, took: Duration) -> bool {
        let (relay, number) = (self.relay, self.number);
        relay.health.postgres_worked(number);
        relay.health.settled_at.set(Some(Instant::now()));
        if cycle.rows > 0 {
            relay.lanes.board.arrived_at.set(Some(Instant::now()));
        }
        relay.note_marked(number, !cycle.locked_out);
        count(&relay.stats, cycle, took);
        give_back(relay, lanes, cycle);
        if cycle.locked_out {
            // Rows of these lanes were not recorded, usually because other sessions have locked them. Continue with the other lanes.
            let acknowledged = relay.memory.acknowledged.borrow();
            let unrecorded = acknowledged.lanes().filter(|lane| lanes.contains(lane));
            for lane in unrecorded.chain(cycle.rejected.iter().copied()) {
                relay.lanes.board.set_aside(lane, Instant::now() + LOCKED_ASIDE);
            }
        } else {
            relay.lanes.narrowing.settled(&relay.lanes.board, &cycle.coverage);
        }
        if cycle.locked_out || cycle.failure.is_some() || cycle.unjudged.is_some() {
            relay.lanes.board.doubt();
        }
        let waits = after_cycle(relay, cycle, self.backoff.attempts);
        if !waits {
            self.backoff.reset();
        }
        waits
    }

    /// Handles a cycle that began at this time and ended with a fault. Returns whether to wait before the next cycle.
    fn not_settled(&self, lanes: &[Lane], before: &Before, begun: Instant, fault: &PostgresFault) -> bool {
        let relay = self.relay;
        relay.stats.postgres_faults.inc();
        relay.lanes.board.doubt();
        if fault.kind == FaultKind::TimedOut {
            relay.lanes.marks.borrow_mut().read_timed_out(lanes);
        }
        if relay.lanes.narrowing.handles(&relay.lanes.board, lanes, before, fault) {
            return false;
        }
        relay.lanes.board.give_back(lanes, &[]);
        match fault.kind {
            FaultKind::Probed => {
                // The hold of a row was deleted while a probe had the row in flight. Until the probe ends, every claim that reads
                // the row fails, so claim the other lanes without it.
                let probed = relay.memory.probed(lanes);
                for lane in &probed {
                    relay.lanes.board.set_aside(*lane, Instant::now() + PROBED_ASIDE);
                }
                relay.lanes.board.add(lanes.iter().copied().filter(|lane| !probed.contains(lane)));
                return false;
            }
            FaultKind::Contended => relay.health.locks_failed(self.number, fault),
            FaultKind::Unavailable | FaultKind::Refused | FaultKind::Data | FaultKind::TimedOut => {
                relay.health.postgres_failed(self.number, begun, fault);
            }
        }
        true
    }
}

async fn open<P: Publisher>(relay: &Relay<P>) -> Result<P::Producer, KafkaFailure> {
    fail_point::reach("opening-session").await;
    relay.kafka.publisher.open().await
}

fn count(stats: &Stats, cycle: &Cycle, took: Duration) {
    stats.published.inc_by(cycle.recorded as u64);
    stats.recovered.inc_by(cycle.recovered as u64);
    if !cycle.coverage.is_empty() {
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

/// Returns the lanes to the board, and tells it which have more work and which another relay has locked.
fn give_back<P>(relay: &Relay<P>, lanes: &[Lane], cycle: &Cycle) {
    let owned: Vec<_> = cycle.coverage.iter().map(|coverage| coverage.lane).collect();
    let others: Vec<_> = lanes.iter().copied().filter(|lane| !owned.contains(lane)).collect();
    relay.lanes.board.give_back(&owned, &cycle.coverage);
    relay.stats.lanes_elsewhere.inc_by(others.len() as u64);
    relay.lanes.board.locked_by_others(&others);
    if cycle.flow.is_arriving {
        relay.lanes.board.add(owned);
    }
    // A row that stays locked is read again and again, which is not progress.
    if cycle.sent > 0 && !cycle.locked_out {
        relay.lanes.board.progress.set(true);
    }
}

/// Handles the failures of a cycle. Returns whether to wait before the next one.
fn after_cycle<P>(relay: &Relay<P>, cycle: &Cycle, attempts: u32) -> bool {
    let acknowledged = cycle.acknowledged_at_end();
    if let Some(failure) = &cycle.failure {
        failed(relay, failure, acknowledged, attempts);
    }
    if let Some(failure) = &cycle.unjudged {
        tracing::debug!("could not retry rejected events one by one: {failure}");
        if failure.kind == FailureKind::Cluster {
            relay.kafka.gate.close(failure.clone());
        }
    }
    // Suspects that could not be judged are claimed again, even if other rows were sent.
    cycle.unjudged.is_some() || (cycle.failure.is_some() && acknowledged == 0)
}

/// Counts a failed session, or a failure to open one. Closes the gate if the cluster failed. An unknown failure also closes
/// it if the session acknowledged nothing, and a session failure if several sessions in a row acknowledged nothing.
fn failed<P>(relay: &Relay<P>, failure: &KafkaFailure, acknowledged: usize, attempts: u32) {
    relay.stats.sessions_failed.inc();
    relay.stats.kafka_failures.at([failure.reason]).inc();
    tracing::debug!("producer session ended: {failure}");
    let closes = match failure.kind {
        FailureKind::Cluster => true,
        FailureKind::Unknown => acknowledged == 0,
        // The relay learns how large requests may be, which takes several sessions.
        FailureKind::Session if failure.reason == SMALLER_BATCHES.word => false,
        FailureKind::Session => acknowledged == 0 && attempts >= SESSIONS_IN_A_ROW,
        FailureKind::Row | FailureKind::Topic => false,
    };
    if closes {
        relay.kafka.gate.close(failure.clone());
    }
}

#[cfg(test)]
mod tests;
