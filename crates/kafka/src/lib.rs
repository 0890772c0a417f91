//! All use of Kafka: [`cluster`] opens producers, [`publishing`] sends records, and [`errors`] maps errors to reasons.

#![warn(unreachable_pub)]
#![allow(rustdoc::private_intra_doc_links)] // the documentation is for people who work on the code

mod advertised;
pub mod client_config;
pub mod cluster;
pub mod comparison;
pub mod envelope;
pub mod errors;
pub mod headers;
pub mod library;
pub mod operate;
pub mod options;
pub mod properties;
pub mod publishing;
mod tokens;
