//! The schema: its migrations, and the checks before a relay starts.

pub mod check;
pub mod migrate;
