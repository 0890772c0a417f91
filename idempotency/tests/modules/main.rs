//! Tests the optional modules on a real server. Each test has its own schema.

#![allow(clippy::unwrap_used)]

mod costs;
mod database;
mod idempotency;
mod inbox;
mod once;
mod round_trips;
mod sql;
mod version;
mod wrong;

#[path = "../../../client/tests/integration/wire.rs"]
mod wire;
