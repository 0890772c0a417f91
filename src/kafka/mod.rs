//! All use of Kafka: [`cluster`] opens producers, [`publishing`] sends records, and [`errors`] maps errors to reasons.

mod advertised;
pub mod client_config;
pub mod cluster;
pub(crate) mod comparison;
pub mod errors;
pub(crate) mod library;
pub(crate) mod operate;
pub mod properties;
pub mod publishing;
mod tokens;
