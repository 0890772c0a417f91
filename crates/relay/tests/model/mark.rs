//! The low-water mark: note H, list the writers, wait until they have ended, read, settle, raise the mark. Also the
//! sweep.

use super::claim::pending;
use super::configuration::Configuration;
use super::environment::readable;
use super::events::Set;
use super::rules::Rule;
use super::state::{Fence, Marks, Phase, Scan, State, Transaction, Writers};
use super::step::Step;

pub fn steps(configuration: &Configuration, state: &State, relay: usize, found: &mut Vec<(Step, State)>) {
    fence(configuration, state, relay, found);
    except(configuration, state, relay, found);
    scan(configuration, state, relay, found);
    sweep(configuration, state, relay, found);
}

/// The id above which a read of this relay begins.
pub fn low_for(configuration: &Configuration, state: &State, relay: usize) -> u8 {
    let marks = &state.relays[relay].marks;
    let is_valid = marks.removals == state.database.removals;
    if !is_valid && configuration.rules.has(Rule::HoldVersion) {
        return 0;
    }
    let has_ended = state.database.open(marks.excepted) != marks.excepted;
    if has_ended && configuration.rules.has(Rule::ReadChecksExcepted) {
        return marks.low.min(marks.floor(marks.excepted));
    }
    marks.low
}

/// The read has been answered. Records everything in the answer except the rows.
pub fn on_read(configuration: &Configuration, state: &mut State, relay: usize) {
    let version = state.database.removals;
    let rows = state.relays[relay].claim.rows();
    let highest = rows.iter().map(|event| state.ids[event]).max().unwrap_or(0);
    let marks = &mut state.relays[relay].marks;
    marks.highest_seen = marks.highest_seen.max(highest);
    note_removals(configuration, marks, version);
    if !configuration.rules.has(Rule::MarkAfterCommit) {
        let covers_to = if state.relays[relay].claim.cut { highest } else { u8::MAX };
        let marks = &mut state.relays[relay].marks;
        marks.low = marks.low.max(marks.passed.min(covers_to));
    }
}

fn note_removals(configuration: &Configuration, marks: &mut Marks, version: u8) {
    if marks.removals != version && configuration.rules.has(Rule::HoldVersion) {
        marks.low = 0;
    }
    marks.removals = version;
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
            next.relays[relay].marks.fence = Fence::Listed { writers: writers(configuration, state) };
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
        if configuration.rules.has(Rule::Fence) { writers(configuration, state) } else { Writers::default() };
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

/// The fence no longer waits for the listed transactions, and learns that excepted ones have ended. A transaction has an id by
/// which it can be recognized once it has inserted its row.
fn except(configuration: &Configuration, state: &State, relay: usize, found: &mut Vec<(Step, State)>) {
    let rules = configuration.rules;
    let marks = state.relays[relay].marks;
    let ended = marks.excepted.without(state.database.open(marks.excepted));
    if !ended.is_empty() {
        let mut next = *state;
        forget_excepted(configuration, &mut next, relay, ended);
        found.push((Step::PollWriters(relay), next));
    }
    if let (Fence::Pending { high, writers: listed }, true) = (marks.fence, configuration.excepts) {
        let open = state.database.open(listed.all());
        let unknown = open.and(state.database.in_state(Transaction::Drawn));
        if !unknown.is_empty() && rules.has(Rule::ExceptOnlyKnown) {
            return;
        }
        let mut next = *state;
        let marks = &mut next.relays[relay].marks;
        for event in open.without(unknown).iter() {
            marks.excepted.insert(event);
            marks.floors[event] = marks.passed;
        }
        marks.fence = Fence::Pending { high, writers: Writers::default() };
        pass_if_clear(marks);
        found.push((Step::ExceptWriters(relay), next));
    }
}

/// The rows of these transactions may be below the mark. Reads that were sent before may not have returned them.
fn forget_excepted(configuration: &Configuration, state: &mut State, relay: usize, ended: Set) {
    let rules = configuration.rules;
    let its = &mut state.relays[relay];
    let floor = its.marks.floor(ended);
    its.marks.excepted = its.marks.excepted.without(ended);
    ended.iter().for_each(|event| its.marks.floors[event] = 0);
    if rules.has(Rule::LowerForExcepted) {
        its.marks.low = its.marks.low.min(floor);
    }
    if rules.has(Rule::ExceptedOutdate) {
        its.claim.outdated |= its.claim.phase != Phase::Idle;
        its.marks.scan.iter_mut().for_each(|scan| scan.outdated = true);
    }
    if rules.has(Rule::FlowChecksExcepted) {
        its.claim.flow = None;
    }
}

/// The scout looks for unsent rows. Its answer proves what a claim proves that has settled all rows before the first unsent one.
fn scan(configuration: &Configuration, state: &State, relay: usize, found: &mut Vec<(Step, State)>) {
    let marks = state.relays[relay].marks;
    let mut next = *state;
    let its = &mut next.relays[relay].marks;
    if let Some(scan) = its.scan.take() {
        its.highest_seen = its.highest_seen.max(scan.first_unsent.unwrap_or(0));
        note_removals(configuration, its, scan.removals);
        if !scan.outdated {
            let fenced =
                if configuration.rules.has(Rule::ReadAfterFence) { scan.fenced } else { marks.passed };
            its.low = its.low.max(fenced.min(scan.first_unsent.map_or(u8::MAX, |id| id - 1)));
        }
        found.push((Step::ReceiveScan(relay), next));
    } else if configuration.scans && marks.passed > marks.low {
        let rows = pending(configuration, state, relay);
        let first_unsent = rows.iter().map(|event| state.ids[event]).min();
        let (fenced, removals) = (marks.passed, state.database.removals);
        its.scan = Some(Scan { first_unsent, fenced, removals, outdated: false });
        found.push((Step::Scan(relay), next));
    }
}

fn writers(configuration: &Configuration, state: &State) -> Writers {
    state.database.writers(configuration.rules.has(Rule::FenceListsSequence))
}

fn begin(marks: &mut Marks, high: u8, writers: Writers) {
    marks.fence = Fence::Pending { high, writers: writers.without(marks.excepted) };
    pass_if_clear(marks);
}

/// Asks which writers of the list have not ended. A prepared transaction appears under another name. While a session of
/// the list remains, every prepared transaction counts as a member of the list.
fn poll_writers(configuration: &Configuration, state: &mut State, relay: usize, high: u8, writers: Writers) {
    let now = self::writers(configuration, state);
    let now = now.without(state.relays[relay].marks.excepted);
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
        next.relays[relay].marks.scan = None;
        found.push((Step::Sweep(relay), next));
    }
}
