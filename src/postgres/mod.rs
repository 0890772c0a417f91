//! postgres

pub mod check;
pub mod grants;
pub mod migrate;
pub mod server_error;
pub mod table;
pub mod tls;
