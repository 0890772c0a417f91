//! postgres

pub mod migrate;
pub mod server_error;
pub mod table;
