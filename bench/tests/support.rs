//! Support code that these tests share with those of the relay.

#![allow(dead_code)] // these tests use a part of it

#[path = "../../tests/support/checker.rs"]
pub mod checker;
#[path = "../../tests/support/command.rs"]
pub mod command;
#[path = "../../tests/support/consumer.rs"]
pub mod consumer;
#[path = "../../tests/support/database.rs"]
pub mod database;
#[path = "../../tests/support/outbox.rs"]
pub mod outbox;
#[path = "../../tests/support/postgres_server.rs"]
pub mod postgres_server;
#[path = "../../tests/support/relay.rs"]
pub mod relay;
#[path = "../../tests/support/roles.rs"]
pub mod roles;
#[path = "../../tests/support/topics.rs"]
pub mod topics;
#[path = "../../tests/support/wait.rs"]
pub mod wait;
