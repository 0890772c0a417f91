//! The fate of a row; the module above has the table of fates and transitions.

/// The result for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Not sent, or its outcome is unknown.
    Open,
    /// Sent, without a report.
    InFlight,
    /// Acknowledged, in this batch or, if an earlier settlement was lost, in an earlier one.
    Acknowledged,
    /// It can never become a record and goes to the dead letters; the index is that of the reason.
    Rejected(u32),
    /// It can never become a record, stays, and blocks its key; the index is that of the reason.
    Blocked(u32),
    /// Kafka refused it or another row of the same request: to be judged alone.
    Suspect,
}

impl Fate {
    /// Nothing is decided: unless that changes, the row is claimed again.
    pub(crate) fn is_undecided(self) -> bool {
        matches!(self, Fate::Open | Fate::InFlight)
    }

    /// After a settlement that records every row, the row is still in the outbox, and unsent.
    pub(crate) fn stays_unsent(self) -> bool {
        match self {
            Fate::Open | Fate::InFlight | Fate::Suspect | Fate::Blocked(_) => true,
            Fate::Acknowledged | Fate::Rejected(_) => false,
        }
    }
}
