//! What must hold in every state: the promises, as far as they can be seen here.

use super::configuration::Configuration;
use super::events::{Event, Set};
use super::state::{State, Transaction};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Invariant {
    /// When nothing is left to do, every committed row that no failover has lost is in Kafka, and settled, unless it was
    /// refused or follows a refused row of its key.
    NoLoss,
    /// `sent_at` is set only after an acknowledgement of that very event; for one that was put back, of its replay.
    SentOnlyAfterAcknowledgement,
    /// First occurrences of a (topic, key) are in the order of the commits.
    Order,
    /// Nothing is in Kafka that was never committed.
    NoPhantom,
    /// Nothing is in Kafka twice, unless something failed.
    NoDuplicateWithoutFault,
    /// From every state, steps without a fault lead to one in which nothing is left to do.
    Progress,
}

/// Kafka stores an event.
pub fn on_stored(configuration: &Configuration, state: &mut State, event: Event) {
    let broken = if state.history.published.contains(event) {
        (state.history.faults == 0).then_some(Invariant::NoDuplicateWithoutFault)
    } else if !was_committed(state, event) {
        Some(Invariant::NoPhantom)
    } else {
        passes_another(configuration, state, event).then_some(Invariant::Order)
    };
    state.history.broken = state.history.broken.or(broken);
}

/// A settlement marks these events.
pub fn on_marked(state: &mut State, events: Set) {
    if !events.without(state.history.acknowledged).is_empty() {
        state.history.broken = Some(Invariant::SentOnlyAfterAcknowledgement);
    }
}

/// Nothing is left to do.
pub fn at_rest(configuration: &Configuration, state: &State) -> Option<Invariant> {
    let committed = state.database.in_state(Transaction::Committed);
    let done = state.history.published.and(state.database.sent);
    let waits = |event: Event| {
        let mut blocking = state.database.blocked.iter();
        blocking.any(|blocks| blocks <= event && configuration.same_place(blocks, event))
    };
    committed.without(done).iter().any(|event| !waits(event)).then_some(Invariant::NoLoss)
}

fn was_committed(state: &State, event: Event) -> bool {
    state.database.transactions[event] == Transaction::Committed || state.history.lost.contains(event)
}

/// Whether an earlier event of its place is not in Kafka yet. Events that a failover has lost keep no order.
fn passes_another(configuration: &Configuration, state: &State, event: Event) -> bool {
    let committed = state.database.in_state(Transaction::Committed);
    let waiting = committed.without(state.history.published).without(state.history.dead);
    !state.history.lost.contains(event)
        && waiting.iter().any(|earlier| earlier < event && configuration.same_place(earlier, event))
}
