//! The cycle except publishing: claim, read, settle, confirm.

use super::configuration::{Configuration, Fault};
use super::environment::{fault, free_lane, hold, readable};
use super::events::Set;
use super::flow;
use super::invariants;
use super::mark;
use super::rules::Rule;
use super::session;
use super::state::{Claim, Fate, Phase, Session, State, Transaction};
use super::step::Step;

pub fn steps(configuration: &Configuration, state: &State, relay: usize, found: &mut Vec<(Step, State)>) {
    let claim = &state.relays[relay].claim;
    if claim.ended && (claim.phase == Phase::Committed || session::is_quiet(state, relay)) {
        let mut next = *state;
        fail(configuration, &mut next, relay);
        found.push((Step::NoticeClaimEnded(relay), next));
    }
    match claim.phase {
        Phase::Idle => {
            begin(configuration, state, relay, found);
            probe(configuration, state, relay, found);
        }
        Phase::Snapshot => {
            if is_lane_free(configuration, state) && !claim.ended {
                let mut next = *state;
                lock(configuration, &mut next, relay, Phase::Publishing);
                found.push((Step::Lock(relay), next));
            }
        }
        Phase::Locked => {
            if !claim.ended {
                let mut next = *state;
                read(configuration, &mut next, relay);
                next.relays[relay].claim.phase = Phase::Publishing;
                found.push((Step::Read(relay), next));
            }
        }
        Phase::Publishing => {
            flow::steps(configuration, state, relay, found);
            let nothing_to_do = claim.with_fate(Fate::Open).is_empty() || state.relays[relay].session.failed;
            let may_settle = !claim.ended || !configuration.rules.has(Rule::SettleInClaim);
            if nothing_to_do && session::is_quiet(state, relay) && may_settle {
                let mut next = *state;
                settle(configuration, &mut next, relay);
                found.push((Step::Settle(relay), next));
            }
        }
        Phase::Committed => {
            // The answer may already have been on its way when the server failed.
            let mut next = *state;
            confirm(configuration, &mut next, relay);
            found.push((Step::Confirm(relay), next));
            if configuration.may_happen(Fault::CommitAnswerLost, state) {
                let lost = fault(state, |next| fail(configuration, next, relay));
                found.push((Step::Fault(Fault::CommitAnswerLost, Some(relay)), lost));
            }
        }
    }
}

/// The scout puts the lane up, and the worker begins a transaction. Each of them may be on any backend.
fn begin(configuration: &Configuration, state: &State, relay: usize, found: &mut Vec<(Step, State)>) {
    if !has_work(configuration, state, relay) {
        return;
    }
    for backend in 0..configuration.backends * configuration.backends {
        let mut next = *state;
        mark::connect_scout(configuration, &mut next, relay, backend / configuration.backends);
        mark::connect_worker(configuration, &mut next, relay, backend % configuration.backends);
        if !configuration.rules.has(Rule::ReadAfterLock) {
            read(configuration, &mut next, relay);
            next.relays[relay].claim.phase = Phase::Snapshot;
            found.push((Step::TakeSnapshot(relay), next));
        } else if is_lane_free(configuration, state) {
            lock(configuration, &mut next, relay, Phase::Locked);
            found.push((Step::Lock(relay), next));
        }
    }
}

/// Begins a claim that publishes one row of a held topic, to find out whether the topic is available again.
fn probe(configuration: &Configuration, state: &State, relay: usize, found: &mut Vec<(Step, State)>) {
    let waiting = state.database.held.and(state.topics).iter();
    for topic in waiting.filter(|_| configuration.probes && is_lane_free(configuration, state)) {
        let mut rows = state.database.unsent().and(configuration.of_topic(topic));
        while let Some(example) = rows.iter().next() {
            let mut next = *state;
            lock(configuration, &mut next, relay, Phase::Locked);
            next.relays[relay].claim.probe = Some(example as u8);
            next.relays[relay].session = Session::default();
            found.push((Step::Probe(relay, example), next));
            rows = rows.without(configuration.of_place(example));
        }
    }
}

/// The scout puts a lane up if it sees a row, or if the acknowledged set has one. A lane that is put up may turn out to
/// be empty. That matters only if it raises the mark.
fn has_work(configuration: &Configuration, state: &State, relay: usize) -> bool {
    let its = &state.relays[relay];
    !pending(configuration, state, relay).is_empty()
        || !its.acknowledged.is_empty()
        || its.marks.passed > its.marks.low
}

/// The rows that a read of this relay returns: those above its mark, except rows of held topics.
pub fn pending(configuration: &Configuration, state: &State, relay: usize) -> Set {
    let low = mark::low_for(configuration, state, relay);
    let mut rows = readable(configuration, state);
    for event in rows.iter().filter(|event| state.ids[*event] <= low) {
        rows.remove(event);
    }
    rows
}

fn is_lane_free(configuration: &Configuration, state: &State) -> bool {
    state.lane_owner.is_none() || !configuration.rules.has(Rule::LaneLock)
}

fn lock(configuration: &Configuration, state: &mut State, relay: usize, phase: Phase) {
    if configuration.rules.has(Rule::LaneLock) {
        state.lane_owner = Some(relay as u8);
    }
    state.relays[relay].claim.phase = phase;
}

/// Reads the first unsent rows, and recognizes those that Kafka already has.
fn read(configuration: &Configuration, state: &mut State, relay: usize) {
    let rules = configuration.rules;
    if let Some(example) = state.relays[relay].claim.probe {
        let rows = state.database.unsent().and(configuration.of_place(example.into()));
        // Without marks, the read begins at the smallest id and raises no mark.
        return take_rows(configuration, state, relay, rows, 1);
    }
    if let Some(flow) = state.relays[relay].last_flow.take() {
        return flow::read(configuration, state, relay, flow);
    }
    let mut rows = pending(configuration, state, relay);
    if let (Some(locked), false) = (state.locked_row, rules.has(Rule::WholePrefix)) {
        rows.remove(locked.into());
    }
    take_rows(configuration, state, relay, rows, configuration.limit);
    if configuration.marks {
        let claim = &mut state.relays[relay].claim;
        claim.fenced = state.relays[relay].marks.passed;
        claim.removals = state.database.removals;
        claim.outdated = false;
        mark::on_read(configuration, state, relay);
    }
    flow::begin(configuration, state, relay);
}

/// Puts the first of these rows into the batch.
fn take_rows(configuration: &Configuration, state: &mut State, relay: usize, rows: Set, limit: usize) {
    let mut first = Set::default();
    state.by_id(rows).take(limit).for_each(|event| first.insert(event));
    take(configuration, state, relay, first);
    state.relays[relay].claim.cut = first != rows;
}

/// Adds these rows to the batch.
pub fn take(configuration: &Configuration, state: &mut State, relay: usize, rows: Set) {
    for event in rows.iter() {
        let recognised = is_recognised(configuration, state, relay, event);
        let fate = if recognised { Fate::Acknowledged } else { Fate::Open };
        state.relays[relay].claim.fates[event] = fate;
    }
}

/// Kafka has acknowledged this row, but no confirmed COMMIT has recorded it.
fn is_recognised(configuration: &Configuration, state: &State, relay: usize, event: usize) -> bool {
    let acknowledged = state.relays[relay].acknowledged;
    let by_id = || acknowledged.iter().any(|known| state.ids[known] == state.ids[event]);
    acknowledged.contains(event) || (!configuration.rules.has(Rule::KnownByEvent) && by_id())
}

/// Marks the acknowledged rows, holds missing topics, and commits.
fn settle(configuration: &Configuration, state: &mut State, relay: usize) {
    let claim = &mut state.relays[relay].claim;
    if !configuration.rules.has(Rule::SettleAcknowledged) {
        for event in claim.rows().iter() {
            claim.fates[event] = Fate::Acknowledged;
        }
    }
    let acknowledged = claim.with_fate(Fate::Acknowledged);
    let mut marked = rows_with_ids_of(state, acknowledged);
    let claim = &mut state.relays[relay].claim;
    // The settlement skips a row that another transaction has locked.
    if let Some(locked) = state.locked_row.filter(|locked| marked.contains((*locked).into())) {
        marked.remove(locked.into());
        claim.locked_out = true;
    }
    claim.phase = Phase::Committed;
    invariants::on_marked(state, marked);
    state.database.sent = state.database.sent.or(marked);
    block(configuration, state, relay);
    let closed = state.relays[relay].session.closed;
    hold(configuration, state, closed);
    free_lane(state, relay);
}

/// Records the blocks of refused rows. A block hides its whole key, so every earlier row of the key must be settled.
fn block(configuration: &Configuration, state: &mut State, relay: usize) {
    let claim = state.relays[relay].claim;
    for refused in claim.with_fate(Fate::Refused).and(state.database.unsent()).iter() {
        let of_key = claim.rows().and(configuration.of_place(refused)).and(state.database.unsent());
        let is_first = of_key.iter().all(|other| other >= refused);
        if is_first || !configuration.rules.has(Rule::BlockBehindNoUnsentRow) {
            state.database.blocked.insert(refused);
            state.database.removals += u8::from(!configuration.rules.has(Rule::CountRemovals));
        }
    }
}

/// The rows that an UPDATE by the ids of these events changes.
fn rows_with_ids_of(state: &State, events: Set) -> Set {
    let mut rows = state.database.in_state(Transaction::Committed);
    for row in rows.iter() {
        if !events.iter().any(|event| state.ids[event] == state.ids[row]) {
            rows.remove(row);
        }
    }
    rows
}

/// The COMMIT is confirmed. Only now does the mark rise, and the acknowledged set forgets the rows that the claim
/// covered.
fn confirm(configuration: &Configuration, state: &mut State, relay: usize) {
    let claim = state.relays[relay].claim;
    if claim.probe.is_some() {
        if claim.locked_out {
            keep(state, relay);
        }
        return end(configuration, state, relay);
    }
    let covers_to = covers_to(state, &claim);
    for event in state.relays[relay].acknowledged.iter() {
        let was_read = claim.rows().contains(event);
        let covered = state.ids[event] <= covers_to;
        if was_read || (covered && configuration.rules.has(Rule::ForgetCovered)) {
            state.relays[relay].acknowledged.remove(event);
        }
    }
    if claim.locked_out {
        // It is unknown which rows were locked.
        keep(state, relay);
    } else if configuration.marks {
        mark::raise(configuration, state, relay, covers_to);
    }
    if !claim.cut {
        state.relays[relay].uncertain = claim.locked_out;
    }
    end(configuration, state, relay);
}

/// The read covered every unsent row from the mark up to this id.
fn covers_to(state: &State, claim: &Claim) -> u8 {
    let last_read = claim.rows().iter().map(|event| state.ids[event]).max();
    if claim.cut { last_read.unwrap_or(0) } else { u8::MAX }
}

/// The settlement has failed, or its outcome is unknown. The relay keeps the acknowledged rows in memory and replaces
/// the connection.
fn fail(configuration: &Configuration, state: &mut State, relay: usize) {
    keep(state, relay);
    let its = &mut state.relays[relay];
    its.uncertain = true;
    if its.claim.probe.is_none() {
        its.marks.worker_backends = Set::default();
    }
    end(configuration, state, relay);
}

fn keep(state: &mut State, relay: usize) {
    let its = &mut state.relays[relay];
    its.acknowledged = its.acknowledged.or(its.claim.with_fate(Fate::Acknowledged));
}

fn end(configuration: &Configuration, state: &mut State, relay: usize) {
    let its = &mut state.relays[relay];
    let was_probe = its.claim.probe.is_some();
    its.last_flow = its.claim.flow.filter(|_| !configuration.rules.has(Rule::FlowOfOneClaim));
    its.claim = Claim::default();
    its.session.closed = Set::default();
    if its.session.failed || was_probe {
        its.session = Session::default();
    }
}
