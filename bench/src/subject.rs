//! What is measured, as far as measuring has to know it: processes that move rows from a table to topics.

use super::error::BenchError;
use super::usage::Party;

/// Something that relays: a relay of ours, or what it is compared with.
#[allow(async_fn_in_trait, reason = "measuring runs on one thread: no future has to be Send")]
pub trait Subject {
    /// Its processes.
    fn party(&self) -> Party;

    /// Whether it still works.
    ///
    /// # Errors
    ///
    /// It has ended or failed, so that waiting for it is in vain; with what it said.
    fn check(&mut self) -> Result<(), BenchError>;

    /// Whether all that it does for so many rows, all that it has moved since its start, is done: its bookkeeping
    /// included. To be asked without making its database work.
    ///
    /// # Errors
    ///
    /// It cannot be told.
    async fn has_settled(&mut self, rows: u64) -> Result<bool, BenchError>;
}
