//! The fate of a row. The table of fates and transitions is in the parent module.

/// The result for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Not sent, or its outcome is unknown.
    Open,
    /// Sent, without a report.
    InFlight,
    /// Acknowledged in this batch, or in an earlier one whose settlement was lost.
    Acknowledged,
    /// It becomes a dead letter. The number is the index of the reason.
    Rejected(u32),
    /// It blocks its key. The number is the index of the reason.
    Blocked(u32),
    /// Kafka refused it or another row of the same request, so it has to be judged alone.
    Suspect,
}

impl Fate {
    /// Whether the row was not sent, or its outcome is unknown.
    pub(crate) fn is_undecided(self) -> bool {
        matches!(self, Fate::Open | Fate::InFlight)
    }

    /// Whether the row is still unsent after a settlement that records every row.
    pub(crate) fn stays_unsent(self) -> bool {
        match self {
            Fate::Open | Fate::InFlight | Fate::Suspect | Fate::Blocked(_) => true,
            Fate::Acknowledged | Fate::Rejected(_) => false,
        }
    }
}
