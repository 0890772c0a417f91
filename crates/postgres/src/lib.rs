//! All SQL of the daemon.
//!
//! Start with [`cycle::claim`] and `cycle::settle`, the two halves of a cycle, and [`cycle::statements`], their text.

#![warn(unreachable_pub)]
#![allow(rustdoc::private_intra_doc_links)] // the documentation is for people who work on the code

pub mod access;
pub mod column_names;
mod columns;
pub mod connection;
pub mod cycle;
pub mod diagnose;
pub mod operate;
pub mod options;
pub mod payload;
pub mod schema;
mod sql;
pub mod table;
pub mod table_name;
