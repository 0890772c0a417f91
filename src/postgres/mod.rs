//! postgres

pub mod table;
