//! The library half of `outbox-relay`: the binary and the tests are its only users, and it has no stable API.
//!
//! Start reading in [`relay`], which decides; [`postgres`] and [`kafka`] carry its decisions out, and [`supervisor`]
//! puts them together.

pub mod admin;
pub mod certificates;
pub mod cli;
pub mod config;
pub mod doctor;
pub mod fail_point;
pub mod kafka;
pub mod postgres;
pub mod relay;
pub mod supervisor;
