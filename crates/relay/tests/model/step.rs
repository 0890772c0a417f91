//! The steps of the world. Each is atomic; between any two of them, anything else may happen.

use super::configuration::{Configuration, Fault};
use super::events::Event;
use super::state::State;
use super::{claim, environment, mark, session};
use std::fmt;

/// One step, as a trace shows it. Relays and events count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    // environment.rs
    Write(Event),
    Draw(Event),
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
    // flow.rs
    ReadOn(usize),
    // claim.rs
    Settle(usize),
    Confirm(usize),
    NoticeClaimEnded(usize),
    // session.rs
    Send(usize, Event),
    MissTopic(usize, Event),
    Refuse(usize, Event),
    Acknowledge(usize, Event),
    // mark.rs
    NoteHighest(usize),
    ListWriters(usize),
    ReceiveWriters(usize),
    PollWriters(usize),
    ExceptWriters(usize),
    Scan(usize),
    ReceiveScan(usize),
    Sweep(usize),
}

impl Step {
    /// Whether the world may come to rest without this step: faults need not occur, late requests need not arrive, and
    /// an operator need not promote a standby or resolve a blocked key.
    pub fn is_optional(self) -> bool {
        matches!(self, Step::Fault(..) | Step::ArriveLate(_) | Step::Promote | Step::DeadLetter(_))
    }
}

/// The steps that a state allows, each with the resulting state.
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
            Step::Draw(event) => write!(f, "the id of event {event} is drawn, in an open transaction"),
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
            Step::ArriveLate(event) => write!(f, "event {event} of an abandoned session is stored"),
            Step::Fault(fault, None) => write!(f, "FAULT {fault:?}"),
            Step::Fault(fault, Some(at)) => write!(f, "FAULT {fault:?} {at}"),
            Step::TakeSnapshot(relay) => write!(f, "relay {relay} takes its snapshot"),
            Step::Lock(relay) => write!(f, "relay {relay} locks the lane"),
            Step::Probe(relay, event) => {
                write!(f, "relay {relay} locks the lane to probe a held topic with the key of event {event}")
            }
            Step::Read(relay) => write!(f, "relay {relay} reads the unsent rows"),
            Step::ReadOn(relay) => write!(f, "relay {relay} reads what is new in the same claim"),
            Step::Settle(relay) => write!(f, "relay {relay} settles, and the server commits"),
            Step::Confirm(relay) => write!(f, "relay {relay} receives the confirmation of its COMMIT"),
            Step::NoticeClaimEnded(relay) => {
                write!(f, "relay {relay} notices that its transaction has ended")
            }
            Step::Send(relay, event) => write!(f, "relay {relay} sends event {event}"),
            Step::MissTopic(relay, event) => {
                write!(f, "relay {relay} finds that the topic of event {event} is missing")
            }
            Step::Refuse(relay, event) => {
                write!(f, "relay {relay} refuses event {event} permanently")
            }
            Step::Acknowledge(relay, event) => {
                write!(f, "Kafka stores event {event} of relay {relay} and acknowledges it")
            }
            Step::NoteHighest(relay) => write!(f, "relay {relay} notes H"),
            Step::ListWriters(relay) => write!(f, "relay {relay} lists the writers"),
            Step::ReceiveWriters(relay) => write!(f, "relay {relay} receives the list of writers"),
            Step::PollWriters(relay) => write!(f, "relay {relay} checks which listed writers remain"),
            Step::ExceptWriters(relay) => write!(f, "relay {relay} no longer waits for the listed writers"),
            Step::Scan(relay) => write!(f, "relay {relay} scans"),
            Step::ReceiveScan(relay) => write!(f, "relay {relay} receives the answer of its scan"),
            Step::Sweep(relay) => write!(f, "relay {relay} sweeps and resets its mark"),
        }
    }
}
