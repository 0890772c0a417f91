//! The rules of the protocol. Each has a switch. ARCHITECTURE.md, "Invariants", explains the reasons.

/// A rule that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rule {
    // Claim.
    /// A lane belongs to one transaction at a time. Off: every transaction gets it.
    LaneLock,
    /// The read's snapshot is taken after the lane lock has returned. Off: lock and read share a snapshot from before
    /// the lock.
    ReadAfterLock,
    /// A claim is a contiguous prefix of the unsent rows. Off: it skips rows that another transaction has locked.
    WholePrefix,
    /// A read sees only committed rows. Off: it also sees rows of open transactions.
    ReadCommitted,

    // Low-water mark.
    /// H counts only after every writer of the list has ended. Off: it counts a little later, even if writers remain.
    Fence,
    /// Reads check that the excepted transactions are still open, and otherwise begin below their rows. Off: they begin at the
    /// mark.
    ReadChecksExcepted,
    /// A flow ends when an excepted transaction has ended. Off: it continues.
    FlowChecksExcepted,
    /// A mark is lowered when an excepted transaction has ended. Off: it stays.
    LowerForExcepted,
    /// A read that was sent before an excepted transaction ended raises no mark. Off: it does.
    ExceptedOutdate,
    /// A transaction is excepted only if its id is known, which is so once it has inserted a row. Off: at any time.
    ExceptOnlyKnown,
    /// H is noted before the writers are listed. Off: after it.
    HighestBeforeWriters,
    /// The list of writers includes those that have only drawn an id. Off: those that have inserted a row.
    FenceListsSequence,
    /// The fence treats a prepared transaction as the listed session that it may have been. Off: it compares names.
    FenceCountsPrepared,
    /// A mark rises to the fence that had passed when its read was sent. Off: to the fence that has passed when its
    /// COMMIT is confirmed.
    ReadAfterFence,
    /// A mark rises when the COMMIT is confirmed. Off: when the rows have been read.
    MarkAfterCommit,
    /// A mark stays below the first row that stays open. Off: it covers all rows that were read.
    MarkBelowOpenRow,
    /// If a limit cut the read off, a mark stops at the last row read. Off: it rises to the fence.
    MarkUpToCut,
    /// Marks, H and the fence are discarded when another server may answer. Off: they are kept.
    ForgetOnAnotherServer,
    /// An answer from an older epoch is ignored. Off: it is used.
    Epoch,
    /// A mark is valid until a hold ends. Off: forever.
    HoldVersion,
    /// Marks are invalidated when holds end. Off: when holds begin.
    CountRemovals,
    /// A sweep from the smallest id finds rows that were put back. Off: no read goes below a mark.
    Sweep,

    // Acknowledged set.
    /// It identifies a row by id and event_id. Off: by id.
    KnownByEvent,
    /// An entry is removed when a confirmed claim covers it. Off: when it is read again.
    ForgetCovered,

    // Flow.
    /// A flow follows only a read that no limit cut off. Off: it follows any read.
    FlowAfterWholeRead,
    /// An id that a flow skipped stays in its search. Off: the flow continues above the highest id.
    FlowKeepsGaps,
    /// An id leaves the search after a read that was sent when the fence had passed it. Off: as soon as the fence passes it.
    FlowReadsFencedGaps,
    /// A flow ends when its search has too many ids. Off: it drops the lowest ones.
    FlowEndsAtGapLimit,
    /// A flow ends when a hold ends. Off: it continues.
    FlowUnderOneVersion,
    /// A flow ends when a row stays unsent. Off: it continues.
    FlowEndsAtFailure,
    /// Ids that were seen are forgotten with the marks. Off: they are kept for the next server.
    FlowForgetsSeen,
    /// The search begins with a claim. Off: the next claim continues it and needs no complete read.
    FlowOfOneClaim,

    // Settlement.
    /// A settlement is part of the claim's own transaction. Off: it uses another transaction if that one has ended.
    SettleInClaim,
    /// Only acknowledged rows are settled. Off: all rows that were read.
    SettleAcknowledged,
    /// A refused row blocks its key only if no earlier row of the key stays unsent. Off: always.
    BlockBehindNoUnsentRow,

    // Session.
    /// An unknown outcome is not a success. Off: it counts as one.
    UnknownIsNoSuccess,
    /// The first failure closes the session. Off: it continues after the failed row.
    CloseAtFirstFailure,
    /// Failed rows are sent again by a new session. Off: by the same session.
    NoResend,
    /// A new session first sends one row alone to each partition. Off: it sends as many as there are.
    Priming,
    /// A missing topic stays closed until the end of the batch. Off: it is looked up for each row.
    ClosedTopicStaysClosed,
}

/// The rules that are switched on.
#[derive(Clone, Copy, Debug)]
pub struct Rules(u64);

impl Rules {
    /// The complete protocol.
    pub const ALL: Rules = Rules(u64::MAX);

    /// All rules but one.
    pub fn without(rule: Rule) -> Rules {
        Rules(!(1 << rule as u8))
    }

    pub fn has(self, rule: Rule) -> bool {
        self.0 & (1 << rule as u8) != 0
    }
}
