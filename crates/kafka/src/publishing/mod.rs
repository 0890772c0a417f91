//! Producers: records, requests, and the reports of the brokers.

pub(crate) mod context;
pub(crate) mod critical_logs;
pub(crate) mod learned;
pub(crate) mod limits;
pub(crate) mod polled;
pub mod producer;
pub mod record;
pub(crate) mod statistics;
