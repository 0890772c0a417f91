//! A flow: after its first read, a claim reads what is new, in the same transaction, until it settles.
//!
//! Every read has a snapshot of its own. Writers of a key take turns, so a snapshot that shows a row shows the earlier rows of
//! its key. Each of those was read before, or its id is in the search. So a flow sends a prefix of each key.

use super::claim::take;
use super::configuration::Configuration;
use super::environment::readable;
use super::events::Set;
use super::rules::Rule;
use super::state::{Claim, Fate, Flow, State, Transaction};
use super::step::Step;

pub fn steps(configuration: &Configuration, state: &State, relay: usize, found: &mut Vec<(Step, State)>) {
    let its = &state.relays[relay];
    let leaves_rows = leaves_rows(&its.claim) && configuration.rules.has(Rule::FlowEndsAtFailure);
    let ends = its.claim.ended || its.session.failed || leaves_rows;
    let Some(flow) = its.claim.flow.filter(|_| !ends) else { return };
    let mut next = *state;
    read(configuration, &mut next, relay, flow);
    if next != *state {
        found.push((Step::ReadOn(relay), next));
    }
}

/// Some row stays unsent. A later row of its key must not be read.
fn leaves_rows(claim: &Claim) -> bool {
    claim.fates.iter().any(|fate| matches!(fate, Fate::Unsent | Fate::Refused))
}

/// The first read of a claim has returned: the search begins where that read ended. It leaves out ids that earlier reads of the
/// relay saw: they were committed when this read was sent.
pub fn begin(configuration: &Configuration, state: &mut State, relay: usize) {
    let claim = state.relays[relay].claim;
    let seen = state.relays[relay].marks.seen;
    let read = ids_of(state, claim.rows());
    saw(configuration, state, relay, read);
    let is_whole = !claim.cut || !configuration.rules.has(Rule::FlowAfterWholeRead);
    if configuration.flows && claim.probe.is_none() && is_whole {
        let fence = Flow { above: claim.fenced, gaps: Set::default(), removals: state.database.removals };
        let flow = extended(fence, read.or(seen));
        state.relays[relay].claim.flow = limited(configuration, flow);
    }
}

/// Reads what is new. A flow ends here if a hold has ended since its first read.
pub fn read(configuration: &Configuration, state: &mut State, relay: usize, mut flow: Flow) {
    let rules = configuration.rules;
    if flow.removals != state.database.removals && rules.has(Rule::FlowUnderOneVersion) {
        state.relays[relay].claim.flow = None;
        return;
    }
    let marks = &state.relays[relay].marks;
    if state.database.open(marks.excepted) != marks.excepted && rules.has(Rule::FlowChecksExcepted) {
        state.relays[relay].claim.flow = None;
        return;
    }
    let passed = marks.passed.into();
    if !rules.has(Rule::FlowReadsFencedGaps) {
        flow.gaps = flow.gaps.above(passed);
    }
    let rows = searched(configuration, state, relay, flow);
    take(configuration, state, relay, rows);
    // The read also returns the ids of rows that it must not publish.
    let committed = in_search(state, state.database.in_state(Transaction::Committed), flow);
    let ids = ids_of(state, committed);
    saw(configuration, state, relay, ids);
    flow = extended(flow, ids);
    flow.gaps = if rules.has(Rule::FlowKeepsGaps) { flow.gaps.above(passed) } else { Set::default() };
    if configuration.marks {
        let highest = rows.iter().map(|event| state.ids[event]).max().unwrap_or(0);
        let marks = &mut state.relays[relay].marks;
        marks.highest_seen = marks.highest_seen.max(highest);
    }
    state.relays[relay].claim.flow = limited(configuration, flow);
}

/// The new rows that the search finds.
fn searched(configuration: &Configuration, state: &State, relay: usize, flow: Flow) -> Set {
    let rows = readable(configuration, state).without(state.relays[relay].claim.rows());
    in_search(state, rows, flow)
}

/// Those of these rows whose ids are in the search.
fn in_search(state: &State, mut rows: Set, flow: Flow) -> Set {
    for event in rows.iter() {
        let id = state.ids[event];
        if id <= flow.above && !flow.gaps.contains(id.into()) {
            rows.remove(event);
        }
    }
    rows
}

fn saw(configuration: &Configuration, state: &mut State, relay: usize, ids: Set) {
    if configuration.flows && configuration.marks {
        let seen = &mut state.relays[relay].marks.seen;
        *seen = seen.or(ids);
    }
}

fn limited(configuration: &Configuration, flow: Flow) -> Option<Flow> {
    let gaps = flow.gaps.highest(configuration.gaps_max);
    (gaps == flow.gaps || !configuration.rules.has(Rule::FlowEndsAtGapLimit)).then_some(Flow { gaps, ..flow })
}

/// The flow after these ids were read. An id between them becomes a gap: its row is not committed.
fn extended(flow: Flow, ids: Set) -> Flow {
    let highest = ids.iter().max().unwrap_or(0).max(flow.above.into());
    let mut gaps = flow.gaps;
    (usize::from(flow.above) + 1..=highest).for_each(|id| gaps.insert(id));
    Flow { above: highest as u8, gaps: gaps.without(ids), ..flow }
}

fn ids_of(state: &State, rows: Set) -> Set {
    let mut ids = Set::default();
    rows.iter().for_each(|event| ids.insert(state.ids[event].into()));
    ids
}
