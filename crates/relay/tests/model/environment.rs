//! Everything outside the relays: writers, operators, topics, failovers, crashes and late requests.

use super::configuration::{Configuration, Fault};
use super::events::{Event, Set};
use super::invariants;
use super::rules::Rule;
use super::state::{Claim, Phase, Relay, State, Transaction};
use super::step::Step;

type Found = Vec<(Step, State)>;

pub fn steps(configuration: &Configuration, state: &State, found: &mut Found) {
    for event in 0..configuration.events.len() {
        write(configuration, state, event, found);
    }
    topics(configuration, state, found);
    operators(configuration, state, found);
    failover(configuration, state, found);
    late_arrivals(configuration, state, found);
    for relay in 0..configuration.relays {
        if configuration.may_happen(Fault::Crash, state) && state.relays[relay] != Relay::default() {
            found.push((Step::Fault(Fault::Crash, Some(relay)), fault(state, |next| crash(next, relay))));
        }
        if configuration.may_happen(Fault::ClaimEnded, state) && has_transaction(&state.relays[relay].claim) {
            let ended = |next: &mut State| end_transaction(next, relay);
            found.push((Step::Fault(Fault::ClaimEnded, Some(relay)), fault(state, ended)));
        }
    }
}

/// The state after this change, which counts as a fault.
pub fn fault(state: &State, change: impl FnOnce(&mut State)) -> State {
    let mut next = *state;
    next.history.faults += 1;
    change(&mut next);
    next
}

fn after(state: &State, change: impl FnOnce(&mut State)) -> State {
    let mut next = *state;
    change(&mut next);
    next
}

/// Writers of one key take turns *before* they insert. A writer begins only after all earlier writers of its key have
/// ended.
fn write(configuration: &Configuration, state: &State, event: Event, found: &mut Found) {
    let set = |to: Transaction| after(state, |next| next.database.transactions[event] = to);
    match state.database.transactions[event] {
        Transaction::NotBegun => {
            let key = configuration.events[event].key;
            let is_ended = |earlier: Event| {
                let earlier = state.database.transactions[earlier];
                matches!(earlier, Transaction::Committed | Transaction::Gone)
            };
            if !(0..event).all(|earlier| configuration.events[earlier].key != key || is_ended(earlier)) {
                return;
            }
            let (to, step) = if configuration.early.contains(event) {
                (Transaction::Drawn, Step::Draw(event))
            } else if configuration.long.contains(event) {
                (Transaction::Open, Step::Begin(event))
            } else {
                (Transaction::Committed, Step::Write(event))
            };
            let begun = after(state, |next| {
                next.database.last_id += 1;
                next.ids[event] = next.database.last_id;
                next.database.transactions[event] = to;
            });
            found.push((step, begun));
        }
        Transaction::Drawn => found.push((Step::Begin(event), set(Transaction::Open))),
        its @ (Transaction::Open | Transaction::Prepared) => {
            found.push((
                Step::Commit(event),
                after(&set(Transaction::Committed), |next| next.history.lost.remove(event)),
            ));
            if configuration.may_roll_back.contains(event) {
                found.push((Step::RollBack(event), set(Transaction::Gone)));
            }
            if its == Transaction::Open && configuration.may_prepare.contains(event) {
                found.push((Step::Prepare(event), set(Transaction::Prepared)));
            }
        }
        Transaction::Committed | Transaction::Gone => {}
    }
}

fn topics(configuration: &Configuration, state: &State, found: &mut Found) {
    for topic in configuration.missing_topics.without(state.topics).iter() {
        found.push((Step::CreateTopic(topic), after(state, |next| next.topics.insert(topic))));
    }
    for topic in state.database.held.and(state.topics).iter() {
        let lifted = after(state, |next| {
            next.database.held.remove(topic);
            next.database.removals += u8::from(configuration.rules.has(Rule::CountRemovals));
        });
        found.push((Step::LiftHold(topic), lifted));
    }
}

fn operators(configuration: &Configuration, state: &State, found: &mut Found) {
    if configuration.may_happen(Fault::TopicHeld, state) {
        for topic in state.topics.without(state.database.held).iter() {
            let held = fault(state, |next| hold(configuration, next, Set::of(&[topic])));
            found.push((Step::Fault(Fault::TopicHeld, Some(topic)), held));
        }
    }
    if let Some(event) = state.locked_row {
        found.push((Step::Unlock(event.into()), after(state, |next| next.locked_row = None)));
    } else if configuration.may_happen(Fault::RowLocked, state) {
        for event in state.database.unsent().iter() {
            let locked = fault(state, |next| next.locked_row = Some(event as u8));
            found.push((Step::Fault(Fault::RowLocked, Some(event)), locked));
        }
    }
    for event in state.database.blocked.iter() {
        let dead = after(state, |next| {
            next.database.blocked.remove(event);
            next.database.removals += u8::from(configuration.rules.has(Rule::CountRemovals));
            next.database.transactions[event] = Transaction::Gone;
            next.history.dead.insert(event);
        });
        found.push((Step::DeadLetter(event), dead));
    }
    let is_certain = |relay: &Relay| relay.claim.phase == Phase::Idle && !relay.uncertain;
    if configuration.may_happen(Fault::PutBack, state) && state.relays.iter().all(is_certain) {
        for event in state.database.sent.iter() {
            let put_back = fault(state, |next| {
                next.database.sent.remove(event);
                next.history.acknowledged.remove(event);
            });
            found.push((Step::Fault(Fault::PutBack, Some(event)), put_back));
        }
    }
}

/// Holds these topics. Only the end of a hold is counted: a new hold cannot make a mark wrong, because fewer rows are
/// readable.
pub fn hold(configuration: &Configuration, state: &mut State, topics: Set) {
    if !topics.without(state.database.held).is_empty() {
        state.database.held = state.database.held.or(topics);
        state.database.removals += u8::from(!configuration.rules.has(Rule::CountRemovals));
    }
}

fn failover(configuration: &Configuration, state: &State, found: &mut Found) {
    if state.standby.is_some() {
        found.push((Step::Promote, after(state, promote)));
    } else if configuration.may_happen(Fault::StandbyBehind, state) {
        let behind = fault(state, |next| next.standby = Some(next.database));
        found.push((Step::Fault(Fault::StandbyBehind, None), behind));
    }
}

fn promote(state: &mut State) {
    let Some(mut database) = state.standby.take() else { return };
    let old = state.database;
    for (event, now) in database.transactions.iter_mut().enumerate() {
        let had_begun = old.transactions[event] != Transaction::NotBegun;
        // A transaction that began after the standby fell behind does not begin again. A transaction that was open has
        // no owner who could commit it.
        let is_open = matches!(*now, Transaction::Drawn | Transaction::Open);
        if is_open || (*now == Transaction::NotBegun && had_begun) {
            *now = Transaction::Gone;
        }
        if old.transactions[event] == Transaction::Committed && *now != Transaction::Committed {
            state.history.lost.insert(event);
        }
    }
    state.database = database;
    state.lane_owner = None;
    state.locked_row = None;
    for relay in &mut state.relays {
        if relay.claim.phase != Phase::Idle {
            relay.claim.ended = true;
        }
        // Connections are new. Behind a pooler, the backends are new.
        relay.marks.worker_backends = Set::default();
        relay.marks.scout_backends = Set::default();
    }
}

fn has_transaction(claim: &Claim) -> bool {
    matches!(claim.phase, Phase::Snapshot | Phase::Locked | Phase::Publishing) && !claim.ended
}

fn end_transaction(state: &mut State, relay: usize) {
    state.relays[relay].claim.ended = true;
    free_lane(state, relay);
}

/// The relay's transaction has ended and released its lock.
pub fn free_lane(state: &mut State, relay: usize) {
    if state.lane_owner == Some(relay as u8) {
        state.lane_owner = None;
    }
}

fn crash(state: &mut State, relay: usize) {
    free_lane(state, relay);
    state.abandon(relay);
    state.relays[relay] = Relay::default();
}

fn late_arrivals(configuration: &Configuration, state: &State, found: &mut Found) {
    for (at, queue) in state.abandoned.iter().enumerate() {
        let Some(event) = queue.front() else { continue };
        let stored = after(state, |next| {
            next.abandoned[at].pop();
            store(configuration, next, event);
        });
        found.push((Step::ArriveLate(event), stored));
    }
}

/// Kafka stores an event.
pub fn store(configuration: &Configuration, state: &mut State, event: Event) {
    invariants::on_stored(configuration, state, event);
    state.history.published.insert(event);
    for queue in &mut state.abandoned {
        *queue = queue.without(state.history.published);
    }
}

/// The rows that a read sees: unsent rows, except those of held topics and blocked keys.
pub fn readable(configuration: &Configuration, state: &State) -> Set {
    let mut rows = state.database.unsent();
    if !configuration.rules.has(Rule::ReadCommitted) {
        rows = rows.or(state.database.in_state(Transaction::Open));
    }
    for topic in state.database.held.iter() {
        rows = rows.without(configuration.of_topic(topic));
    }
    for blocks in state.database.blocked.iter() {
        rows = rows.without(configuration.of_place(blocks));
    }
    rows
}
