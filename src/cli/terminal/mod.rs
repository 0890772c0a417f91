//! Output on stdout, and the progress bar.

pub(crate) mod ask;
pub mod output;
pub(crate) mod progress;
