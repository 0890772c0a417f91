//! Lanes: which of them have unsent rows, who works on them, and below which ids nothing is unsent.
//!
//! The scout finds lanes with work and puts them up on the board. The marks keep reads short, the fence makes the marks safe, and
//! the acknowledged set remembers rows whose settlement is not confirmed.

pub mod acknowledged;
pub mod board;
pub mod fence;
pub mod looking;
pub mod marks;
pub mod scout;
