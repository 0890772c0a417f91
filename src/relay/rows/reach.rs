//! How far a batch went in a lane.

use crate::relay::lane::Lane;

/// How far a batch went in one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The lane.
    pub lane: Lane,
    /// The last row that was read, if any was.
    pub last_read: Option<i64>,
    /// The first row that stays unsent.
    pub first_open: Option<i64>,
    /// There may be more behind `last_read`.
    pub cut: bool,
    /// It had more than its share, and the others had less than theirs.
    pub hungry: bool,
}

impl Reach {
    /// Every unsent row up to this id was read, beginning at the mark.
    pub(crate) fn covers_to(&self) -> Option<i64> {
        if self.cut { self.last_read } else { Some(i64::MAX) }
    }
}
