//! Connections and short transactions, and what an error of the server means.

pub mod connect;
pub mod fault;
pub(crate) mod handshake;
pub(crate) mod pooler;
pub(crate) mod server_error;
pub mod session;
pub mod sqlstates;
pub(crate) mod tls;
pub(crate) mod transaction;
