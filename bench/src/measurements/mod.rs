//! What is measured: drains, flows, steady rates and idle relays.

pub mod drain;
pub mod flow;
pub mod idle;
pub mod latency;
pub mod plan;
pub mod steady;
