//! Migrations, the adoption of existing tables, the checks before the relay starts, and the settings that it records.

pub(crate) mod adapter;
pub(crate) mod adopt;
pub mod check;
pub(crate) mod identity;
pub mod migrate;
pub(crate) mod own;
pub(crate) mod setting;
