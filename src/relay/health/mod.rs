//! Health: whether Kafka and Postgres work, and what logs, metrics, `/readyz` and the watchdog report of it.

pub(crate) mod episodes;
pub mod gate;
pub mod outage;
pub mod progress;
pub mod rejections;
pub mod stats;
