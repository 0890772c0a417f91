//! The subject of a measurement: processes that move rows from a table to topics.

use crate::error::BenchError;
use crate::processes::usage::Party;

/// A program that relays rows: our relay, or one that it is compared with.
#[allow(async_fn_in_trait, reason = "measurements run on one thread, so futures need not be Send")]
pub trait Subject {
    /// Its processes.
    fn party(&self) -> Party;

    /// Checks whether it still works.
    ///
    /// # Errors
    ///
    /// If it has ended or failed, with its output.
    fn check(&mut self) -> Result<(), BenchError>;

    /// Whether it has settled this number of rows, all that it has published since its start. The check must not cause
    /// work for its database.
    ///
    /// # Errors
    ///
    /// If this cannot be determined.
    async fn has_settled(&mut self, rows: u64) -> Result<bool, BenchError>;
}
