//! The integration tests: one binary, against real servers (`scripts/services up`).

mod database;
mod migrate;
