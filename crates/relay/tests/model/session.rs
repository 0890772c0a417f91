//! Publishing: rows are sent, Kafka stores and acknowledges them, and requests fail.
//!
//! Storing a row and receiving its acknowledgement is one step. A row that is stored without an acknowledgement is the
//! same to the relay as a row that arrives late.

use super::configuration::{Configuration, Fault};
use super::environment::{fault, store};
use super::events::{Event, Queue, Set};
use super::rules::Rule;
use super::state::{Fate, Phase, Session, State, TOPICS};
use super::step::Step;

pub fn steps(configuration: &Configuration, state: &State, relay: usize, found: &mut Vec<(Step, State)>) {
    let its = &state.relays[relay];
    if its.claim.phase != Phase::Publishing || its.session.failed {
        return;
    }
    for topic in 0..TOPICS {
        send(configuration, state, relay, topic, found);
        let queue = its.session.queues[topic];
        let Some(event) = queue.front() else { continue };
        let mut next = *state;
        acknowledge(configuration, &mut next, relay, topic);
        found.push((Step::Acknowledge(relay, event), next));
        if configuration.may_happen(Fault::RequestFailed, state) {
            let failed = fault(state, |next| fail(configuration, next, relay, topic));
            found.push((Step::Fault(Fault::RequestFailed, Some(event)), failed));
        }
        let is_fresh = !its.session.known.contains(topic) && queue.len() > 1;
        if is_fresh && configuration.may_happen(Fault::FirstRequestRefused, state) {
            let refused = fault(state, |next| refuse_first(configuration, next, relay, topic));
            found.push((Step::Fault(Fault::FirstRequestRefused, Some(event)), refused));
        }
    }
}

/// No outcome is outstanding.
pub fn is_quiet(state: &State, relay: usize) -> bool {
    state.relays[relay].session.queues.iter().all(|queue| queue.is_empty())
}

/// Sends the next row of this topic.
fn send(
    configuration: &Configuration,
    state: &State,
    relay: usize,
    topic: usize,
    found: &mut Vec<(Step, State)>,
) {
    let its = &state.relays[relay];
    let waiting = its.claim.with_fate(Fate::Open).and(configuration.of_topic(topic));
    let Some(event) = state.by_id(waiting).next() else { return };
    if !its.session.open.contains(topic) && !state.topics.contains(topic) {
        let mut next = *state;
        miss_topic(configuration, &mut next, relay, event, waiting);
        found.push((Step::MissTopic(relay, event), next));
        return;
    }
    let is_primed = its.session.known.contains(topic) || its.session.queues[topic].is_empty();
    if is_primed && configuration.refused.contains(event) {
        let mut next = *state;
        refuse(configuration, &mut next, relay, event);
        found.push((Step::Refuse(relay, event), next));
    } else if is_primed || !configuration.rules.has(Rule::Priming) {
        let mut next = *state;
        let its = &mut next.relays[relay];
        its.session.open.insert(topic);
        its.session.queues[topic].push(event);
        its.claim.fates[event] = Fate::InFlight;
        found.push((Step::Send(relay, event), next));
    }
}

/// The event can never be sent. Later events of its key in this batch wait.
fn refuse(configuration: &Configuration, state: &mut State, relay: usize, event: Event) {
    let fates = &mut state.relays[relay].claim.fates;
    fates[event] = Fate::Refused;
    for later in configuration.of_place(event).iter().filter(|other| *other > event) {
        if fates[later] == Fate::Open {
            fates[later] = Fate::Unsent;
        }
    }
}

/// The topic is missing. None of its rows in this batch is sent, even if the topic is created a moment later.
fn miss_topic(configuration: &Configuration, state: &mut State, relay: usize, event: Event, waiting: Set) {
    let its = &mut state.relays[relay];
    its.session.closed.insert(configuration.events[event].topic);
    let left =
        if configuration.rules.has(Rule::ClosedTopicStaysClosed) { waiting } else { Set::of(&[event]) };
    left.iter().for_each(|event| its.claim.fates[event] = Fate::Unsent);
}

fn acknowledge(configuration: &Configuration, state: &mut State, relay: usize, topic: usize) {
    let session = &mut state.relays[relay].session;
    session.known.insert(topic);
    let Some(event) = session.queues[topic].pop() else { return };
    state.relays[relay].claim.fates[event] = Fate::Acknowledged;
    state.history.acknowledged.insert(event);
    store(configuration, state, event);
}

/// The first request in flight fails, and it is unknown whether it will be stored. The requests behind it are stored
/// after it or not at all, because the partition knows the producer and accepts no gap.
fn fail(configuration: &Configuration, state: &mut State, relay: usize, topic: usize) {
    let rules = configuration.rules;
    let its = &mut state.relays[relay];
    let mut queue = its.session.queues[topic];
    let Some(event) = queue.pop() else { return };
    if !rules.has(Rule::NoResend) {
        queue.push(event);
        its.session.queues[topic] = queue;
    } else if !rules.has(Rule::CloseAtFirstFailure) {
        its.session.queues[topic] = queue;
        its.claim.fates[event] = Fate::Unsent;
        let mut alone = Queue::default();
        alone.push(event);
        state.abandon_queue(alone);
    } else {
        close(state, relay);
        if !rules.has(Rule::UnknownIsNoSuccess) {
            state.relays[relay].claim.fates[event] = Fate::Acknowledged;
        }
    }
}

/// The second request is stored whatever its sequence number is. The retry of the first request is answered like a
/// duplicate: a success without an offset, which counts as unknown.
fn refuse_first(configuration: &Configuration, state: &mut State, relay: usize, topic: usize) {
    let its = &mut state.relays[relay];
    let mut queue = std::mem::take(&mut its.session.queues[topic]);
    let (Some(first), Some(second)) = (queue.pop(), queue.pop()) else { return };
    its.session.known.insert(topic);
    its.session.queues[topic] = queue;
    its.claim.fates[first] = Fate::Unsent;
    its.claim.fates[second] = Fate::Acknowledged;
    state.history.acknowledged.insert(second);
    store(configuration, state, second);
    close(state, relay);
    if !configuration.rules.has(Rule::UnknownIsNoSuccess) {
        state.relays[relay].claim.fates[first] = Fate::Acknowledged;
    }
}

/// The session accepts no more rows, and the outcome of rows in flight is unknown.
fn close(state: &mut State, relay: usize) {
    state.abandon(relay);
    let its = &mut state.relays[relay];
    its.session = Session { failed: true, ..its.session };
    for event in its.claim.with_fate(Fate::InFlight).iter() {
        its.claim.fates[event] = Fate::Unsent;
    }
}
