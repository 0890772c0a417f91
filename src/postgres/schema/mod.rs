//! Migrations, and the checks before the relay starts.

pub mod check;
pub mod migrate;
