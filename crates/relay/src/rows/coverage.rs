//! How far a batch went in one lane.

use crate::lane::Lane;

/// How far a batch went in one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// The lane.
    pub lane: Lane,
    /// The last row that was read.
    pub last_read: Option<i64>,
    /// The first row that stays unsent.
    pub first_open: Option<i64>,
    /// There may be more rows after `last_read`.
    pub cut: bool,
    /// The lane used its whole share while the batch still had room.
    pub used_share: bool,
}

impl Coverage {
    /// Every unsent row from the mark up to this id was read.
    pub(crate) fn covers_to(&self) -> Option<i64> {
        if self.cut { self.last_read } else { Some(i64::MAX) }
    }
}
