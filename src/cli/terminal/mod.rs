//! Output on stdout, and the progress bar.

pub mod output;
pub(crate) mod progress;
