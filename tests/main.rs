//! The integration tests: one binary, against real servers (`scripts/services up`).

mod check;
mod database;
mod migrate;
