//! Lanes: which have unsent rows, which worker has them, and their low-water marks.
//!
//! The scout finds lanes with work and puts them on the board. The marks keep reads short, and the fence makes the marks
//! safe.

pub(crate) mod board;
pub mod fence;
pub mod lookout;
pub mod marks;
pub(crate) mod scan_order;
pub mod scout;
pub mod seen;
pub(crate) mod width;
