//! Lanes: which of them have unsent rows, who works on them, and below which ids nothing is unsent.
//!
//! The scout finds lanes with work and puts them up on the board. The marks keep reads short, and the fence makes the
//! marks safe.

pub(crate) mod board;
pub(crate) mod fence;
pub(crate) mod looking;
pub mod marks;
pub mod scout;
pub(crate) mod width;
