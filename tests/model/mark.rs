//! The low-water mark: note H, list the writers, wait until they have ended, read, settle, raise the mark. Also the
//! sweep.

use super::configuration::Configuration;
use super::environment::readable;
use super::rules::Rule;
use super::state::{Fence, Marks, Phase, State, Writers};
use super::step::Step;

pub fn steps(configuration: &Configuration, state: &State, relay: usize, found: &mut Vec<(Step, State)>) {
    fence(configuration, state, relay, found);
    sweep(configuration, state, relay, found);
}

/// The id above which a read of this relay begins.
pub fn low_for(configuration: &Configuration, state: &State, relay: usize) -> u8 {
    let marks = &state.relays[relay].marks;
    let is_valid = marks.removals == state.database.removals;
    if is_valid || !configuration.rules.has(Rule::HoldVersion) { marks.low } else { 0 }
}

/// The read has been answered. Records everything in the answer except the rows.
pub fn on_read(configuration: &Configuration, state: &mut State, relay: usize) {
    let version = state.database.removals;
    let rows = state.relays[relay].claim.rows();
    let highest = rows.iter().map(|event| state.ids[event]).max().unwrap_or(0);
    let marks = &mut state.relays[relay].marks;
    marks.highest_seen = marks.highest_seen.max(highest);
    if marks.removals != version && configuration.rules.has(Rule::HoldVersion) {
        marks.low = 0;
    }
    marks.removals = version;
    if !configuration.rules.has(Rule::MarkAfterCommit) {
        let covers_to = if state.relays[relay].claim.cut { highest } else { u8::MAX };
        let marks = &mut state.relays[relay].marks;
        marks.low = marks.low.max(marks.passed.min(covers_to));
    }
}

/// The COMMIT is confirmed.
pub fn raise(configuration: &Configuration, state: &mut State, relay: usize, covers_to: u8) {
    let rules = configuration.rules;
    let claim = state.relays[relay].claim;
    let first_open = claim.open_rows().iter().map(|event| state.ids[event]).min();
    let marks = &mut state.relays[relay].marks;
    if claim.outdated || claim.removals != marks.removals {
        return;
    }
    let mut raised = if rules.has(Rule::ReadAfterFence) { claim.fenced } else { marks.passed };
    if rules.has(Rule::MarkUpToCut) {
        raised = raised.min(covers_to);
    }
    if rules.has(Rule::MarkBelowOpenRow) {
        raised = raised.min(first_open.map_or(u8::MAX, |id| id - 1));
    }
    marks.low = marks.low.max(raised);
}

/// The worker's transaction runs on this backend.
pub fn connect_worker(configuration: &Configuration, state: &mut State, relay: usize, backend: usize) {
    if configuration.marks && !state.relays[relay].marks.worker_backends.contains(backend) {
        forget(configuration, state, relay);
        state.relays[relay].marks.worker_backends.insert(backend);
    }
}

/// This backend answers the scout's query.
pub fn connect_scout(configuration: &Configuration, state: &mut State, relay: usize, backend: usize) {
    if configuration.marks && !state.relays[relay].marks.scout_backends.contains(backend) {
        forget(configuration, state, relay);
        state.relays[relay].marks.scout_backends.insert(backend);
    }
}

/// The server may have lost commits. It would then issue their ids again.
fn forget(configuration: &Configuration, state: &mut State, relay: usize) {
    if !configuration.rules.has(Rule::ForgetOnAnotherServer) {
        return;
    }
    let old = state.relays[relay].marks;
    let mut marks = Marks {
        worker_backends: old.worker_backends,
        scout_backends: old.scout_backends,
        ..Marks::default()
    };
    if configuration.rules.has(Rule::Epoch) {
        let claim = &mut state.relays[relay].claim;
        claim.outdated = claim.phase == Phase::Publishing || claim.phase == Phase::Committed;
    } else {
        marks.fence = old.fence;
    }
    if !configuration.rules.has(Rule::FlowForgetsSeen) {
        marks.seen = old.seen;
    }
    state.relays[relay].marks = marks;
}

fn fence(configuration: &Configuration, state: &State, relay: usize, found: &mut Vec<(Step, State)>) {
    let rules = configuration.rules;
    let marks = state.relays[relay].marks;
    match marks.fence {
        Fence::None if marks.highest_seen > marks.passed && rules.has(Rule::HighestBeforeWriters) => {
            let mut next = *state;
            next.relays[relay].marks.fence = Fence::Noted { high: marks.highest_seen };
            found.push((Step::NoteHighest(relay), next));
        }
        Fence::None if !rules.has(Rule::HighestBeforeWriters) => {
            let mut next = *state;
            next.relays[relay].marks.fence = Fence::Listed { writers: state.database.writers() };
            found.push((Step::ListWriters(relay), next));
        }
        Fence::None => {}
        Fence::Listed { writers } => {
            if marks.highest_seen > marks.passed {
                let mut next = *state;
                begin(&mut next.relays[relay].marks, marks.highest_seen, writers);
                found.push((Step::NoteHighest(relay), next));
            }
        }
        Fence::Noted { high } => {
            for backend in 0..configuration.backends {
                let mut next = *state;
                connect_scout(configuration, &mut next, relay, backend);
                list(configuration, &mut next, relay, high);
                found.push((Step::ListWriters(relay), next));
            }
        }
        Fence::Answered { high, writers } => {
            let mut next = *state;
            begin(&mut next.relays[relay].marks, high, writers);
            found.push((Step::ReceiveWriters(relay), next));
        }
        Fence::Pending { high, writers } => {
            let mut next = *state;
            poll_writers(configuration, &mut next, relay, high, writers);
            if next != *state {
                found.push((Step::PollWriters(relay), next));
            }
        }
    }
}

/// The server lists the writers. If the marks were discarded since H was noted, the answer is ignored.
fn list(configuration: &Configuration, state: &mut State, relay: usize, high: u8) {
    let writers =
        if configuration.rules.has(Rule::Fence) { state.database.writers() } else { Writers::default() };
    let marks = &mut state.relays[relay].marks;
    if !matches!(marks.fence, Fence::Noted { .. }) {
        return;
    }
    if configuration.late_answers {
        marks.fence = Fence::Answered { high, writers };
    } else {
        begin(marks, high, writers);
    }
}

fn begin(marks: &mut Marks, high: u8, writers: Writers) {
    marks.fence = Fence::Pending { high, writers };
    pass_if_clear(marks);
}

/// Asks which writers of the list have not ended. A prepared transaction appears under another name. While a session of
/// the list remains, every prepared transaction counts as a member of the list.
fn poll_writers(configuration: &Configuration, state: &mut State, relay: usize, high: u8, writers: Writers) {
    let now = state.database.writers();
    let mut left = Writers {
        sessions: writers.sessions.and(now.sessions),
        prepared: writers.prepared.and(now.prepared),
    };
    if !writers.sessions.is_empty() && configuration.rules.has(Rule::FenceCountsPrepared) {
        left.prepared = now.prepared;
    }
    let marks = &mut state.relays[relay].marks;
    marks.fence = Fence::Pending { high, writers: left };
    pass_if_clear(marks);
}

fn pass_if_clear(marks: &mut Marks) {
    if let Fence::Pending { high, writers } = marks.fence
        && writers.is_empty()
    {
        marks.passed = marks.passed.max(high);
        marks.fence = Fence::None;
    }
}

/// Searches below the mark for rows that were put back.
fn sweep(configuration: &Configuration, state: &State, relay: usize, found: &mut Vec<(Step, State)>) {
    if !configuration.rules.has(Rule::Sweep) {
        return;
    }
    let low = state.relays[relay].marks.low;
    if readable(configuration, state).iter().any(|event| state.ids[event] <= low) {
        let mut next = *state;
        next.relays[relay].marks.low = 0;
        next.relays[relay].claim.outdated |= next.relays[relay].claim.phase != Phase::Idle;
        found.push((Step::Sweep(relay), next));
    }
}
