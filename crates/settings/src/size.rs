//! Sizes in bytes, such as `8MiB`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes, written like `8MiB`, `512KiB` or `65536`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(u64);

const UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

impl ByteSize {
    /// A size of this many bytes.
    pub const fn bytes(bytes: u64) -> ByteSize {
        ByteSize(bytes)
    }

    /// The size in bytes.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The size in bytes, at most `usize::MAX`.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// The text is not a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a size such as \"8MiB\", \"512KiB\" or 65536")]
pub struct InvalidSize;

impl FromStr for ByteSize {
    type Err = InvalidSize;

    fn from_str(text: &str) -> Result<ByteSize, InvalidSize> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = (&text[..digits], text[digits..].trim_start());
        let factor = match unit {
            "" => 1,
            unit => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or(InvalidSize)?.1,
        };
        let number: u64 = number.parse().map_err(|_| InvalidSize)?;
        number.checked_mul(factor).map(ByteSize).ok_or(InvalidSize)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary =
            UNITS.iter().take(3).find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        match binary {
            Some((unit, factor)) => write!(formatter, "{}{unit}", self.0 / factor),
            None => write!(formatter, "{}B", self.0),
        }
    }
}
