//! The library behind the binary `outbox-relay` and its tests. It has no stable API.
//!
//! Start with [`relay`], which decides. [`postgres`] and [`kafka`] carry out the decisions, and [`supervisor`] assembles
//! the parts.

#![warn(unreachable_pub)]
#![allow(rustdoc::private_intra_doc_links)] // the documentation is for people who work on the code

pub mod admin;
pub mod cli;
pub mod config;
pub(crate) mod status;
pub mod supervisor;

pub use {::kafka, ::postgres, ::relay};
