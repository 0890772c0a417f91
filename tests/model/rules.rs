//! The rules of the protocol, each with a switch. ARCHITECTURE.md, "Invariants", says why each of them is there.

/// A rule that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rule {
    // The claim.
    /// A lane is with one transaction at a time. Off: whoever asks gets it.
    LaneLock,
    /// The read is bound after the lane lock has returned. Off: lock and read share a snapshot from before the lock.
    ReadAfterLock,
    /// A claim is a contiguous prefix of the unsent rows. Off: rows that somebody else has locked are skipped.
    WholePrefix,
    /// A read sees what is committed. Off: it sees open transactions too.
    ReadCommitted,

    // The low-water mark.
    /// H counts only once every writer of the list has ended. Off: it counts a little later, whoever still writes.
    Fence,
    /// H is noted before the writers are listed. Off: after it.
    HighestBeforeWriters,
    /// The fence takes a prepared transaction for the session of the list that it may have been. Off: it goes by name.
    FenceCountsPrepared,
    /// A mark rises to the fence that had passed when its read was sent. Off: when its COMMIT is confirmed.
    ReadAfterFence,
    /// A mark rises when the COMMIT is confirmed. Off: when the rows were read.
    MarkAfterCommit,
    /// A mark stays below the first row that stays open. Off: it goes by what was read.
    MarkBelowOpenRow,
    /// A mark goes no further than the last row read if a limit cut the read off. Off: it rises to the fence.
    MarkUpToCut,
    /// Marks, H and the fence are forgotten when another server may answer. Off: they are kept.
    ForgetOnAnotherServer,
    /// An answer to a question of an older epoch says nothing. Off: it is taken in.
    Epoch,
    /// A mark is valid until a hold ends. Off: for ever.
    HoldVersion,
    /// The holds that end are counted for it. Off: those that begin.
    CountRemovals,
    /// A sweep from the smallest id finds what people put back. Off: nobody looks below a mark.
    Sweep,

    // The acknowledged set.
    /// It knows a row by id and event_id. Off: by id.
    KnownByEvent,
    /// An entry goes when a confirmed claim covers it. Off: when it is read again.
    ForgetCovered,

    // The settlement.
    /// A settlement is in the claim's own transaction. Off: in another one if that has ended.
    SettleInClaim,
    /// Only acknowledged rows are settled. Off: whatever was read.
    SettleAcknowledged,
    /// A refused row blocks its key only if no earlier row of the key stays unsent. Off: in any case.
    BlockBehindNoUnsentRow,

    // The session.
    /// An outcome that is unknown is no success. Off: it is taken for one.
    UnknownIsNoSuccess,
    /// The first failure closes the session. Off: it goes on behind the row that failed.
    CloseAtFirstFailure,
    /// What failed is sent again by a new session. Off: by the same one.
    NoResend,
    /// A new session begins each partition with one row alone. Off: with as many as there are.
    Priming,
    /// A topic that is missing stays closed to the end of the batch. Off: it is looked up for each row.
    ClosedTopicStaysClosed,
}

/// The rules that are on.
#[derive(Clone, Copy, Debug)]
pub struct Rules(u32);

impl Rules {
    /// The protocol as it is.
    pub const ALL: Rules = Rules(u32::MAX);

    /// All rules but one.
    pub fn without(rule: Rule) -> Rules {
        Rules(!(1 << rule as u8))
    }

    pub fn has(self, rule: Rule) -> bool {
        self.0 & (1 << rule as u8) != 0
    }
}
