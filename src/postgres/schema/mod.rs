//! Migrations, the checks before the relay starts, and the settings that it records.

pub mod check;
pub mod migrate;
pub(crate) mod setting;
