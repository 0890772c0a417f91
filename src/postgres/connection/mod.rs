//! Connections, transactions of one statement, and errors of the server.

pub mod connect;
pub(crate) mod dial;
pub(crate) mod ending;
pub mod fault;
pub(crate) mod guard;
pub(crate) mod handshake;
pub(crate) mod password_command;
pub(crate) mod pooler;
pub(crate) mod server_error;
pub mod session;
pub mod sqlstates;
pub(crate) mod tls;
pub(crate) mod transaction;
