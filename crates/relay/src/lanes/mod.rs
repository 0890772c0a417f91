//! Lanes: the fixed hash partitions of the keys, the unit of ordering and of claiming.
//!
//! The scout finds lanes with unsent rows and puts them on the board, from which the workers take them. The low-water marks keep
//! reads short, and the fence makes the marks safe.

pub(crate) mod board;
pub mod marks;
pub mod scout;
pub(crate) mod width;

use std::fmt;

/// The number of lanes. It is part of the schema (`sql/0001_outbox.sql`) and not a setting: two relays that disagreed about
/// it could publish one key at the same time.
pub const LANES: usize = 64;

/// One lane, `hashtext(aggregate_id) & 63`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(u8);

impl Lane {
    pub fn new(number: i64) -> Option<Lane> {
        u8::try_from(number).ok().filter(|&n| usize::from(n) < LANES).map(Lane)
    }

    pub fn all() -> impl Iterator<Item = Lane> {
        (0..LANES as u8).map(Lane)
    }

    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The `smallint` of the lane table.
    pub fn number(self) -> i16 {
        i16::from(self.0)
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lane {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_numbered_from_0_to_63() {
        assert_eq!(Lane::all().count(), 64);
        assert_eq!(Lane::new(63).map(Lane::number), Some(63));
        assert_eq!(Lane::new(64), None);
        assert_eq!(Lane::new(-1), None);
    }
}
