//! Lanes: which of them have unsent rows, who works on them, and below which ids nothing is unsent.
//!
//! The scout finds lanes with work and puts them up on the board. The marks keep reads short, and the fence makes the
//! marks safe.

pub mod board;
pub mod fence;
pub mod looking;
pub mod marks;
pub mod scout;
pub mod width;
