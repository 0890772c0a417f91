//! Whether the connection of a claim must be closed.

use crate::connection::ending::Ending;
use relay::failure::PostgresFault;
use std::cell::Cell;

/// Whether the connection must not be used again.
#[derive(Default)]
pub(crate) struct Discard {
    due: Cell<bool>,
    ending: Ending,
}

impl Discard {
    pub(crate) fn new(ending: Ending) -> Discard {
        Discard { due: Cell::new(false), ending }
    }

    /// Discards the connection.
    pub(crate) fn set(&self) {
        self.due.set(true);
    }

    /// Whether the connection must be discarded. The next one need not.
    pub(crate) fn take(&self) -> bool {
        self.due.take()
    }

    /// Discards the connection unless another session's lock or the statement timeout caused the fault. The cause may be the state
    /// of this connection: a demoted server, a stale plan, or a prepared statement that a pooler lost. Returns the fault, with
    /// the reason for which the server ended the session if the connection is closed.
    pub(crate) fn after(&self, fault: PostgresFault) -> PostgresFault {
        if !fault.kind.keeps_connection() {
            self.set();
        }
        self.ending.explain(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use relay::failure::FaultKind;

    #[test]
    fn only_a_lock_of_another_session_or_a_timeout_keeps_the_connection() {
        let discard = Discard::default();
        for kind in [FaultKind::Contended, FaultKind::Unavailable, FaultKind::Refused, FaultKind::TimedOut] {
            discard.after(PostgresFault { kind, doing: "testing", message: String::new() });
            let keeps = [FaultKind::Contended, FaultKind::TimedOut].contains(&kind);
            assert_eq!(discard.take(), !keeps, "{kind:?}");
            assert!(!discard.take());
        }
    }
}
