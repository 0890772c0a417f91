//! What a comparison has found.

use uuid::Uuid;

/// How a record, or its absence, differs from the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An event without a record.
    Lost,
    /// An event whose first record follows that of a later event of its key.
    Reordered,
    /// A record that differs from its event.
    Altered,
    /// A record that belongs to no event.
    Unknown,
    /// A further record of an event.
    Duplicate,
}

impl Kind {
    /// The worst first.
    pub(crate) const ALL: [Kind; 5] =
        [Kind::Lost, Kind::Reordered, Kind::Altered, Kind::Unknown, Kind::Duplicate];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Kind::Lost => "lost",
            Kind::Reordered => "reordered",
            Kind::Altered => "altered",
            Kind::Unknown => "unknown",
            Kind::Duplicate => "duplicate",
        }
    }

    /// Whether it breaks a guarantee. Duplicates with the same bytes are allowed after a failure.
    pub(crate) fn breaks_guarantee(self) -> bool {
        self != Kind::Duplicate
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub kind: Kind,
    /// `None` if the record has no readable event id.
    pub event_id: Option<Uuid>,
    /// The row; `None` for an unknown record.
    pub outbox_id: Option<i64>,
    /// The place in [`super::scope::Scope::topics`].
    pub topic: u32,
    pub partition: u32,
    /// Of the record; `None` if there is none.
    pub offset: Option<i64>,
    /// The parts of an altered record that differ.
    pub parts: Vec<&'static str>,
}

/// All findings: the counts, and the first of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// Events whose records were judged.
    pub events: u64,
    counts: [u64; Kind::ALL.len()],
    shown_max: usize,
    shown: Vec<Finding>,
    pub unjudged: Unjudged,
}

/// What could not be judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unjudged {
    /// Events without a record, in topics that do not exist.
    pub topic_missing: u64,
    /// Events without a record, in partitions that were compacted.
    pub compacted: u64,
    /// Events without a record, in partitions that may have been compacted.
    pub may_be_compacted: u64,
    /// Events without a record, in partitions whose records have expired.
    pub expired: u64,
    /// Records without a row that may have been reaped.
    pub reaped: u64,
    /// Further records of events that an operator replayed.
    pub replayed: u64,
    /// Copies of events in a topic other than their own.
    pub copies: u64,
    /// Records of dead letters.
    pub dead_letters: u64,
    /// Events that follow a later event of their key, but whose first record may be gone.
    pub order: u64,
}

impl Findings {
    /// Keeps up to `shown_max` findings of each kind, and counts the others.
    pub(crate) fn new(shown_max: usize) -> Findings {
        Findings { shown_max, ..Findings::default() }
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        let count = &mut self.counts[finding.kind as usize];
        *count += 1;
        if *count <= self.shown_max as u64 {
            self.shown.push(finding);
        }
    }

    pub(crate) fn count(&self, kind: Kind) -> u64 {
        self.counts[kind as usize]
    }

    /// The number of findings that break a guarantee.
    pub(crate) fn broken(&self) -> u64 {
        Kind::ALL.iter().filter(|kind| kind.breaks_guarantee()).map(|kind| self.count(*kind)).sum()
    }

    /// The first findings of each kind, worst first.
    pub(crate) fn shown(&self) -> impl Iterator<Item = &Finding> {
        Kind::ALL.iter().flat_map(|kind| self.shown.iter().filter(move |finding| finding.kind == *kind))
    }
}
