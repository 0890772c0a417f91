//! Connections, transactions of one statement, and errors of the server.

pub mod connect;
pub(crate) mod dial;
pub(crate) mod ending;
pub mod fault;
pub(crate) mod guard;
pub(crate) mod handshake;
pub mod password_command;
pub mod pooler;
pub mod server_error;
pub mod session;
pub mod sqlstates;
pub mod tls;
pub mod transaction;
