//! What can be judged: the range, and what the topics still have.

/// How much the clocks of the relay, the brokers and PostgreSQL may differ, in microseconds.
pub(crate) const CLOCKS_DIFFER_US: i64 = 60_000_000;

/// What is verified. Times are in microseconds since 1970.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    /// The beginning of the range.
    pub since_us: i64,
    /// The end of the range for unknown records: later ones may belong to rows that were committed after they were read.
    pub unknown_until_us: i64,
    /// Rows that were sent before this time may have been reaped.
    pub reaped_until_us: i64,
    /// The topics, to which entries refer by place.
    pub topics: Vec<Topic>,
}

/// A topic.
#[derive(Clone, Debug, Default)]
pub(crate) struct Topic {
    pub name: String,
    /// Whether Kafka compacts it; `None` if its settings are not known.
    pub compacts: Option<bool>,
    /// Empty if the topic does not exist.
    pub partitions: Vec<Partition>,
}

/// What a partition still has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Partition {
    /// Records up to this time may have expired; `None` if the partition has all records of the range.
    pub expired_until_us: Option<i64>,
    /// Offsets are missing, because of compaction or transactions.
    pub has_gaps: bool,
}

/// Why the absence of a record proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    TopicMissing,
    Compacted,
    /// Compaction or transactions have removed offsets, and it is not known which.
    MayBeCompacted,
    Expired,
}

impl Scope {
    /// Why a record for an event that was created at this time may be missing although the event was published.
    pub(crate) fn explain_absence(&self, topic: u32, partition: u32, created_us: i64) -> Option<Absence> {
        let Some(topic) = self.topics.get(topic as usize).filter(|topic| !topic.partitions.is_empty()) else {
            return Some(Absence::TopicMissing);
        };
        let Partition { expired_until_us, has_gaps } =
            topic.partitions.get(partition as usize).copied().unwrap_or_default();
        // Without a gap, nothing was compacted, whatever the settings are.
        match topic.compacts {
            Some(true) if has_gaps => return Some(Absence::Compacted),
            None if has_gaps => return Some(Absence::MayBeCompacted),
            _ => {}
        }
        let has_expired = |until: i64| created_us <= until.saturating_add(CLOCKS_DIFFER_US);
        expired_until_us.is_some_and(has_expired).then_some(Absence::Expired)
    }

    /// Whether a record of this time without a row is judged.
    pub(crate) fn judges_unknown(&self, at_us: i64) -> Unknown {
        if at_us < self.since_us || at_us >= self.unknown_until_us {
            return Unknown::OutOfRange;
        }
        if at_us < self.reaped_until_us.saturating_add(CLOCKS_DIFFER_US) {
            return Unknown::MayBeReaped;
        }
        Unknown::Judged
    }
}

/// What is known about a record without a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    Judged,
    MayBeReaped,
    OutOfRange,
}
