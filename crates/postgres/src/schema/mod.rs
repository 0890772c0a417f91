//! Migrations, the adoption of existing tables, the checks before the relay starts, and the settings that it records.

pub mod adapter;
pub mod adopt;
pub mod check;
pub mod identity;
pub mod migrate;
pub(crate) mod own;
pub mod setting;
