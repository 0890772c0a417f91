//! The test servers and the waiting that all tests of the repository share.

#![allow(dead_code)] // other tests use the rest of it

#[path = "../../../../tests/support/database.rs"]
pub mod database;
#[path = "../../../../tests/support/kafka_server/mod.rs"]
pub mod kafka_server;
#[path = "../../../../tests/support/postgres_server.rs"]
pub mod postgres_server;
#[path = "../../../../tests/support/roles.rs"]
pub mod roles;
#[path = "../../../../tests/support/topics.rs"]
pub mod topics;
#[path = "../../../../tests/support/wait.rs"]
pub mod wait;
