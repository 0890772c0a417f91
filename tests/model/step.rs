//! The steps of the world. Each is atomic; between any two of them, anything else may happen.

use super::configuration::{Configuration, Fault};
use super::events::Event;
use super::state::State;
use super::{claim, environment, mark, session};
use std::fmt;

/// One step, as a trace shows it. Relays count from 0, events from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    // environment.rs
    Write(Event),
    Begin(Event),
    Prepare(Event),
    Commit(Event),
    RollBack(Event),
    CreateTopic(usize),
    LiftHold(usize),
    Unlock(Event),
    DeadLetter(Event),
    Promote,
    ArriveLate(Event),
    Fault(Fault, Option<usize>),
    // claim.rs
    TakeSnapshot(usize),
    Lock(usize),
    Probe(usize, Event),
    Read(usize),
    Settle(usize),
    Confirm(usize),
    FindClaimEnded(usize),
    // session.rs
    HandOver(usize, Event),
    MissTopic(usize, Event),
    Refuse(usize, Event),
    Acknowledge(usize, Event),
    // mark.rs
    NoteHighest(usize),
    ListWriters(usize),
    TakeAnswer(usize),
    LookAtWriters(usize),
    Sweep(usize),
}

impl Step {
    /// Whether the world may come to rest without it: faults need not happen, late requests need not arrive, and an
    /// operator needs to promote nothing and to resolve no blocked key.
    pub fn is_optional(self) -> bool {
        matches!(self, Step::Fault(..) | Step::ArriveLate(_) | Step::Promote | Step::DeadLetter(_))
    }
}

/// The steps that a state allows, each with the state that it leads to.
pub fn successors(configuration: &Configuration, state: &State) -> Vec<(Step, State)> {
    let mut found = Vec::with_capacity(24);
    environment::steps(configuration, state, &mut found);
    for relay in 0..configuration.relays {
        claim::steps(configuration, state, relay, &mut found);
        session::steps(configuration, state, relay, &mut found);
        if configuration.marks {
            mark::steps(configuration, state, relay, &mut found);
        }
    }
    found
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topic = |topic: &usize| ["A", "B"][*topic];
        match self {
            Step::Write(event) => write!(f, "event {event} is inserted and committed"),
            Step::Begin(event) => write!(f, "event {event} is inserted; its transaction stays open"),
            Step::Prepare(event) => write!(f, "the transaction of event {event} is prepared"),
            Step::Commit(event) => write!(f, "event {event} is committed"),
            Step::RollBack(event) => write!(f, "event {event} is rolled back"),
            Step::CreateTopic(at) => write!(f, "topic {} is created", topic(at)),
            Step::LiftHold(at) => write!(f, "the hold of topic {} is lifted", topic(at)),
            Step::Unlock(event) => write!(f, "the row of event {event} is unlocked"),
            Step::DeadLetter(event) => {
                write!(f, "an operator moves event {event}, which blocks its key, to the dead letters")
            }
            Step::Promote => write!(f, "the standby is promoted"),
            Step::ArriveLate(event) => write!(f, "event {event} of a session that was given up is stored"),
            Step::Fault(fault, None) => write!(f, "FAULT {fault:?}"),
            Step::Fault(fault, Some(at)) => write!(f, "FAULT {fault:?} {at}"),
            Step::TakeSnapshot(relay) => write!(f, "relay {relay} takes its snapshot"),
            Step::Lock(relay) => write!(f, "relay {relay} locks the lane"),
            Step::Probe(relay, event) => {
                write!(f, "relay {relay} locks the lane to probe a held topic with the key of event {event}")
            }
            Step::Read(relay) => write!(f, "relay {relay} reads the unsent rows"),
            Step::Settle(relay) => write!(f, "relay {relay} settles, and the server commits"),
            Step::Confirm(relay) => write!(f, "relay {relay} hears that its COMMIT is confirmed"),
            Step::FindClaimEnded(relay) => write!(f, "relay {relay} finds its transaction ended"),
            Step::HandOver(relay, event) => write!(f, "relay {relay} hands event {event} to its session"),
            Step::MissTopic(relay, event) => write!(f, "relay {relay} finds no topic for event {event}"),
            Step::Refuse(relay, event) => {
                write!(f, "relay {relay} finds that event {event} can never be sent")
            }
            Step::Acknowledge(relay, event) => {
                write!(f, "Kafka stores event {event} of relay {relay} and acknowledges it")
            }
            Step::NoteHighest(relay) => write!(f, "relay {relay} notes H"),
            Step::ListWriters(relay) => write!(f, "relay {relay} has the writers listed"),
            Step::TakeAnswer(relay) => write!(f, "relay {relay} takes in the list of writers"),
            Step::LookAtWriters(relay) => write!(f, "relay {relay} looks which writers of its list are left"),
            Step::Sweep(relay) => write!(f, "relay {relay} sweeps and resets its mark"),
        }
    }
}
