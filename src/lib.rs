//! The library half of `outbox-relay`: the binary and the tests are its only users, and it has no stable API.
//!
//! Start reading in [`relay`], which decides; [`postgres`] and [`kafka`] carry its decisions out, and [`supervisor`]
//! puts them together.

#![warn(unreachable_pub)]
#![allow(rustdoc::private_intra_doc_links)] // the documentation is for people who work on the code

pub mod admin;
pub(crate) mod certificates;
pub mod cli;
pub mod config;
pub mod doctor;
pub(crate) mod fail_point;
pub mod kafka;
pub mod postgres;
pub mod relay;
pub mod supervisor;
