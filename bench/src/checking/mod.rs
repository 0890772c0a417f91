//! Reads the records after a measurement, and compares them with the committed rows.

pub mod checker;
pub mod rows;
pub mod verify;
