//! What must hold in every state: the guarantees, as far as the model can show them.

use super::configuration::Configuration;
use super::events::{Event, Set};
use super::state::{State, Transaction};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Invariant {
    /// When no work is left, every committed row is in Kafka and settled. Exempt are rows that a failover has lost,
    /// refused rows, and rows that follow a refused row of their key.
    NoLoss,
    /// `sent_at` is set only after an acknowledgement of that very event. If the event was put back, only after an
    /// acknowledgement of its replay.
    SentOnlyAfterAcknowledgement,
    /// First occurrences of a (topic, key) are in commit order.
    Order,
    /// Kafka contains only committed events.
    NoPhantom,
    /// Without a fault, Kafka contains no event twice.
    NoDuplicateWithoutFault,
    /// From every state, a state without remaining work can be reached without a fault.
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

/// Checks the state when no work is left.
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

/// Whether an earlier event of the same topic and key is not in Kafka yet. Events that a failover has lost have no
/// order.
fn passes_another(configuration: &Configuration, state: &State, event: Event) -> bool {
    let committed = state.database.in_state(Transaction::Committed);
    let waiting = committed.without(state.history.published).without(state.history.dead);
    !state.history.lost.contains(event)
        && waiting.iter().any(|earlier| earlier < event && configuration.same_place(earlier, event))
}
